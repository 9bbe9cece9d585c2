"""Commands as a shell starts them: in a process, through the installed script, from any folder."""

import os
import signal
import subprocess
import sys
import time

import pytest

from linearno.core.version import VERSION
from linearno.meshes import generate_cases
from tests.commands import linearno
from tests.conftest import TINY

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
if __name__ == "__main__":
    print("started", flush=True)
from linearno.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""  # as pip writes the console script, with a line when Python has started
PLANTED = ("pyvista", "struct", "multiprocessing", "numpy", "pickle", "json", "types")
PLANT = "import pathlib\npathlib.Path({marker!r}).touch()\nraise SystemExit('planted file ran')\n"


def test_example_cases_are_generated_by_a_fresh_process(tmp_path):
    command = [sys.executable, "-m", "linearno", "data", "generate", "cases", "--resolution", "6"]
    subprocess.run([*command, "--train", "2", "--test", "1", "--out", str(tmp_path / "cases")], check=True)
    assert len(list((tmp_path / "cases").glob("*.vtu"))) == 3


@pytest.fixture
def linearno_script(tmp_path):
    """The command line of the console script, whose folder, not the working directory, is on sys.path."""
    script = tmp_path / "bin" / "linearno"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    return [sys.executable, str(script)]


@pytest.fixture
def planted(tmp_path):
    """A working directory with Python files named like modules that linearno and its processes import."""
    folder, marker = tmp_path / "work", tmp_path / "marker"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(PLANT.format(marker=str(marker)))
    return folder, marker


def run(command, folder, **environment):
    """Standard output of a command that succeeds in `folder`."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_generation_workers_import_nothing_from_the_working_directory(linearno_script, planted):
    folder, marker = planted
    sizes = ["--train", 3, "--test", 2, "--resolution", 9]
    run([*linearno_script, "data", "generate", "darcy", *sizes, "--workers", 2, "--out", "set"], folder)
    assert not marker.exists()
    assert (folder / "set" / "card.json").exists()


def test_the_mesh_reader_imports_nothing_from_the_working_directory(linearno_script, planted):
    pytest.importorskip("pyvista")
    folder, marker = planted
    sizes = {"train": 3, "test": 2}
    generate_cases(folder / "plates", sizes=sizes, resolution=4, seed=0, workers=1, tick=lambda n: None)
    run([*linearno_script, "init", "plates"], folder)
    changes = ["model.width=8", "model.depth=1", "model.heads=2", "model.slices=4", "training.epochs=2"]
    words = [word for change in changes for word in ("--set", change)]
    run([*linearno_script, "train", "dataset.yaml", *words, "--out", "run", "--device", "cpu"], folder)
    assert not marker.exists()
    assert (folder / "run" / "metrics.json").exists()


def test_workers_of_a_script_import_the_modules_next_to_it(tmp_path):
    (tmp_path / "solver.py").write_text("def double(x):\n    return 2 * x\n")
    script = tmp_path / "generate.py"
    script.write_text(
        "import solver\n"
        "from linearno.data.generation.workers import process_map\n"
        "if __name__ == '__main__':\n"
        "    print(list(process_map(solver.double, [1, 2, 3], workers=2)))\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert run([sys.executable, script], elsewhere).strip() == "[2, 4, 6]"


@pytest.mark.parametrize("module", [True, False])
def test_the_version_is_printed_without_importing_pytorch(linearno_script, tmp_path, module):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is imported')")
    command = [sys.executable, "-m", "linearno"] if module else linearno_script
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert run([*command, "--version"], tmp_path, PYTHONPATH=path).splitlines()[-1] == f"linearno {VERSION}"


def test_the_version_is_an_option_like_others():
    assert linearno("--version") == (0, f"linearno {VERSION}\n")
    assert "--version" in linearno("--help")[1]


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0])
def test_ctrl_c_at_any_time_prints_no_traceback(linearno_script, darcy_folder, tmp_path, delay):
    changes = [*TINY, f"data.root={darcy_folder}", "training.epochs=100000"]
    words = [word for change in changes for word in ("--set", change)]
    command = [*linearno_script, "train", "darcy/linearno", *words, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "started\n"
    time.sleep(delay)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors
    assert "Traceback" not in errors
