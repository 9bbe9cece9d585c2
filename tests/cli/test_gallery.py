"""`linearno gallery` on two tiny benchmarks: one page, nothing done twice, nothing lost."""

import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.tables import TABLES
from linearno.cli.gallery import generate_data, run_config
from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.core.registry import Registry
from linearno.data import DarcyConfig, ElasticityConfig
from linearno.recipes import RECIPES, gallery
from linearno.recipes.gallery import GalleryEntry, small
from linearno.reproduce.records import read_records
from linearno.training import TrainingConfig
from tests.commands import linearno, measure, refused
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow

TRAINING = TrainingConfig(epochs=1, batch=4, eval_batch=3)
SIZE = {"width": 8, "depth": 1, "heads": 2, "slices": 4}


def tiny_darcy():
    """Pressure from permeability."""
    return small("darcy", DarcyConfig(train=6, test=3, stride=4, source="generated"), TRAINING, **SIZE)


def tiny_elasticity():
    """Stress from shape."""
    return small("elasticity", ElasticityConfig(train=6, test=3, source="generated"), TRAINING, **SIZE)


@pytest.fixture(scope="module")
def two():
    """A gallery of two."""
    entries = Registry("benchmark of the gallery")
    entries.register("darcy")(GalleryEntry("Darcy flow", tiny_darcy, resolution=17, seconds=1))
    entries.register("elasticity")(GalleryEntry("Elasticity", tiny_elasticity, resolution=10, seconds=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linearno.cli.gallery.GALLERY", entries)
        patch.setattr(os, "cpu_count", lambda: 1)  # one process to start
        yield


@pytest.fixture(scope="module")
def whole(two, tmp_path_factory):
    """The folder of a finished gallery, and what the command said."""
    out = tmp_path_factory.mktemp("gallery")
    code, output = linearno("gallery", "--out", out, "--device", "cpu", "--figures", out / "figures")
    assert code == 0, output
    return out, output


def test_the_page_has_a_card_for_each_benchmark_and_a_link_to_its_report(whole):
    out, output = whole
    page = (out / "index.html").read_text()
    for name, title in (("darcy", "Darcy flow"), ("elasticity", "Elasticity")):
        assert f'id="{name}"' in page
        assert f"{title}, median case: truth, prediction and absolute error" in page
        assert f'href="{name}/report.html"' in page
        assert (out / name / "report.html").exists()
        assert (out / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert page.count("than the mean-field baseline") == 2
    assert "6 training and 3 test samples" in page
    assert "Data sets and models are small" in page
    assert "Not finished" not in page
    assert "about 0.033 min on two cores: darcy 1 s, elasticity 1 s" in output.replace("\n", " ")


def test_what_is_finished_is_not_done_again(whole):
    out, _ = whole

    def stamps():
        return {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.parent != out}

    before = stamps()
    code, output = linearno("gallery", "--out", out, "--device", "cpu")
    assert code == 0, output
    assert "all benchmarks are finished" in output
    assert stamps() == before


def test_runs_of_the_gallery_become_records_and_a_table(whole, tmp_path):
    runs = [word for name in ("darcy", "elasticity") for word in ("--record", whole[0] / name / "run")]
    code, output = measure("results", "--folder", tmp_path, *runs)
    assert code == 0, output
    records = read_records(tmp_path).records
    assert list(records) == ["demo/gallery/darcy", "demo/gallery/elasticity"]
    darcy = records["demo/gallery/darcy"]
    assert darcy.details["seconds"]["solve"] > 0
    row = next(
        line for line in TABLES["gallery"](records).splitlines() if line.startswith("| Darcy flow | 6 + 3 ")
    )
    assert f"| {darcy.value:.3f} (relative L2) |" in row


def test_a_failing_benchmark_leaves_the_cards_of_the_others(two, tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise UserError("the solver does not like it")

    monkeypatch.setattr("linearno.cli.gallery.generate_data", broken_for("darcy", broken))
    code, output = linearno("gallery", "--out", tmp_path, "--device", "cpu")
    assert code == 2
    assert "error: darcy: the solver does not like it" in output
    page = (tmp_path / "index.html").read_text()
    assert 'id="elasticity"' in page
    assert 'id="darcy"' not in page
    assert "the solver does not like it" in page

    monkeypatch.setattr("linearno.cli.gallery.generate_data", broken_for("darcy", lambda *args: 1 / 0))
    code, output = linearno("gallery", "--out", tmp_path, "--device", "cpu")
    assert code == 1
    assert 'id="elasticity"' in (tmp_path / "index.html").read_text()


def broken_for(name, broken):
    """`generate_data`, but for one benchmark."""
    return lambda out, each: (broken if each == name else generate_data)(out, each)


def test_a_part_of_the_gallery_says_how_to_get_the_rest(two, tmp_path, monkeypatch):
    monkeypatch.setattr("linearno.cli.gallery.generate_data", lambda out, name: 1 / 0)
    code, _ = linearno("gallery", "elasticity", "--out", tmp_path, "--device", "cpu")
    assert code == 1
    assert "“linearno gallery darcy” adds these benchmarks" in (tmp_path / "index.html").read_text()


def test_an_unknown_name_is_refused_before_any_work(tmp_path):
    line = refused("gallery", "darcy", "elastcity", "--out", tmp_path / "out")
    assert "unknown benchmark of the gallery 'elastcity'; did you mean 'elasticity'" in line
    assert not (tmp_path / "out").exists()


def test_a_folder_of_other_settings_is_refused_before_any_work(whole, monkeypatch):
    monkeypatch.setattr(
        "linearno.cli.gallery.run_config",
        lambda out, name: override(run_config(out, name), ["training.epochs=2"]),
    )
    assert "training.epochs was 1, now 2" in refused("gallery", "--out", whole[0])


def test_every_gallery_entry_is_a_recipe_that_generates_its_own_data():
    for name in gallery.GALLERY:
        config = RECIPES[f"gallery/{name}"]()
        assert config.recipe == f"gallery/{name}"
        assert getattr(config.data, "source", "generated") == "generated"
        assert gallery.GALLERY[name].task.endswith(".")


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_keeps_what_is_done_and_the_same_command_resumes(tmp_path):
    command = [sys.executable, "-m", "linearno", "gallery", "elasticity", "--out", tmp_path / "out"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    progress = tmp_path / "out" / "elasticity" / "data" / "progress.json"
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not progress.exists():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "the same command resumes" in errors
    assert "Not finished" in (tmp_path / "out" / "index.html").read_text()
