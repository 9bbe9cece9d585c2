"""The command line as a user meets it: what it prints, what it refuses, what it leaves behind."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import yaml
from scipy.io import loadmat, savemat

from linearno import load
from linearno.core.atomic_io import folder_lock
from linearno.experiment import run
from linearno.initialization import open_splits
from linearno.run_folder import open_run
from linearno.training.interrupt import Interrupted
from tests.commands import linearno, refused
from tests.conftest import TINY
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(darcy_folder):
    """The arguments that make a recipe tiny."""
    return [word for change in [*TINY, f"data.root={darcy_folder}"] for word in ("--set", change)]


def test_training_writes_a_run_and_says_what_comes_next(tiny, tmp_path):
    code, output = linearno("train", "darcy/linearno", *tiny, "--out", tmp_path / "run", "--device", "cpu")
    assert code == 0, output
    assert "test relative L2" in output
    assert f"linearno report {tmp_path / 'run'}" in output.replace("\n", "")
    assert load(tmp_path / "run").recipe == "darcy/linearno"


def test_a_run_can_be_repeated_from_its_own_configuration(tiny_run, tmp_path):
    code, output = linearno("train", tiny_run / "config.yaml", "--out", tmp_path / "run")
    assert code == 0, output
    first, second = (
        json.loads((folder / "metrics.json").read_text()) for folder in (tiny_run, tmp_path / "run")
    )
    assert first["relative_l2"] == second["relative_l2"]


def test_training_curves_go_to_tensorboard_on_request(tiny, tmp_path):
    pytest.importorskip("tensorboard")
    code, output = linearno(
        "train", "darcy/linearno", *tiny, "--out", tmp_path / "run", "--track", tmp_path / "tb"
    )
    assert code == 0, output
    assert list((tmp_path / "tb").glob("events.out.*"))


@pytest.fixture(scope="module")
def command(tiny):
    """A training that takes long enough to be stopped, as a user starts it."""
    return [sys.executable, "-m", "linearno", "train", "darcy/linearno", *tiny, "--set", "training.epochs=60"]


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    """The run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    subprocess.run([*command, "--out", folder], check=True, capture_output=True)
    return folder


def wait_for_epochs(folder, count):
    history, deadline = folder / "history.jsonl", time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not (history.exists() and history.read_text().count("\n") >= count):
        time.sleep(0.005)


def test_an_interrupted_command_resumes_to_the_same_bits(command, whole, tmp_path):
    """SIGTERM and SIGKILL: see test_resume."""
    cut = tmp_path / "cut"
    process = subprocess.Popen(
        [*command, "--out", cut], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for_epochs(cut, 5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGINT
    assert "the same command resumes" in errors
    assert not (cut / "model.safetensors").exists()
    subprocess.run([*command, "--out", cut], check=True, capture_output=True)
    assert (cut / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    losses = [[json.loads(line)["loss"] for line in (run / "history.jsonl").open()] for run in (whole, cut)]
    assert losses[0] == losses[1]


@pytest.fixture(scope="module")
def long_command(command):
    """A training that does not end by itself within a test."""
    return [*command, "--set", "training.epochs=100000"]


def test_a_folder_in_training_is_refused_to_others_until_that_process_ends(long_command, tmp_path):
    folder, quiet = tmp_path / "run", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    first = subprocess.Popen([*long_command, "--out", folder], **quiet)
    try:
        wait_for_epochs(folder, 2)
        second = subprocess.run([*long_command, "--out", folder], capture_output=True, text=True, timeout=60)
        assert second.returncode == 2, second.stderr
        busy = f"another process is training in {folder}; wait, or choose another --out"
        assert second.stderr.splitlines()[-1] == f"error: {busy}"
        assert "training or evaluating in" in refused("evaluate", folder, "--device", "cpu")
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()
    with folder_lock(folder):
        pass


@pytest.fixture(scope="module")
def part(tiny_config, tmp_path_factory):
    """A run that was stopped after two of its three epochs."""
    folder = tmp_path_factory.mktemp("two words") / "part"

    def stop(record):
        if record.epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        run(tiny_config(), folder, torch.device("cpu"), stop)
    return folder


def test_a_run_that_is_not_trained_to_the_end_says_so_and_how_to_continue(part, tiny_config, tmp_path):
    command = f"linearno train '{part}'"
    message = f"{part} is not trained to the end: 2 of 3 epochs are done; continue: {command}"
    question = tmp_path / "question.npz"
    np.savez(question, coeff=np.ones((33, 33)))
    assert refused("evaluate", part) == f"error: {message}"
    assert refused("predict", part, question) == f"error: {message}"
    assert refused("export", part, "--format", "torch") == f"error: {message}"
    code, output = linearno("report", part, "--out", tmp_path / "report.html")
    assert code == 0, output  # a page with the curves so far
    assert output.splitlines()[-1] == message
    words = shlex.split(command)
    code, output = linearno(*words[1:])
    assert code == 0, output
    assert linearno("evaluate", part)[0] == 0


def test_a_run_without_a_checkpoint_has_no_epoch_done(part, tmp_path):
    shutil.copy(part / "config.yaml", tmp_path)
    assert ": 0 of 3 epochs are done; " in refused("evaluate", tmp_path)


def test_evaluate_scores_a_run_again(tiny_run, tmp_path):
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    (folder / "metrics.json").unlink()
    code, output = linearno("evaluate", folder, "--device", "cpu")
    assert code == 0, output
    assert (folder / "metrics.json").read_text()
    assert "relative L2   mean" in output


@pytest.mark.parametrize("ending", [".npz", ".mat"])
def test_predict_answers_in_the_shape_of_the_question(tiny_run, tmp_path, ending):
    config = open_run(tiny_run)
    test = open_splits(config.data).test
    coeff = test.inputs.reshape(6, 9, 9).numpy()
    question, answer = tmp_path / f"q{ending}", tmp_path / f"a{ending}"
    if ending == ".npz":
        np.savez(question, coeff=coeff)
    else:
        savemat(question, {"coeff": coeff})
    code, output = linearno("predict", tiny_run, question, "-o", answer, "--device", "cpu")
    assert code == 0, output
    sol = np.load(answer)["sol"] if ending == ".npz" else loadmat(answer)["sol"]
    expected = load(tiny_run).predict(test.inputs).reshape(6, 9, 9)
    torch.testing.assert_close(torch.from_numpy(sol), expected)


def test_predict_within_a_given_memory_says_what_it_takes_and_answers_the_same(tiny_config, tmp_path):
    pointwise = tiny_config("darcy/linearno", "model.stem=linear", "training.epochs=1")
    run(pointwise, tmp_path / "run", torch.device("cpu"))
    test = open_splits(pointwise.data).test
    np.savez(tmp_path / "q.npz", coeff=test.inputs.reshape(6, 9, 9).numpy())
    for out, more in (("a.npz", []), ("b.npz", ["--memory", "20MB"])):
        code, output = linearno("predict", tmp_path / "run", tmp_path / "q.npz", "-o", tmp_path / out, *more)
        assert code == 0, output
    assert "81 points, 81 at a time in 3 passes; features kept in host memory" in output
    whole, parts = (torch.from_numpy(np.load(tmp_path / out)["sol"]) for out in ("a.npz", "b.npz"))
    torch.testing.assert_close(parts, whole)
    assert "memory='much': expected a number of bytes" in refused(
        "predict", tmp_path / "run", tmp_path / "q.npz", "--memory", "much"
    )


def test_a_model_on_a_grid_says_that_it_cannot_be_streamed(tiny_run, tmp_path):
    np.savez(tmp_path / "q.npz", coeff=np.ones((9, 9), np.float32))
    complaint = refused("predict", tiny_run, tmp_path / "q.npz", "--memory", "2GB")
    assert "tied to a grid cannot be queried elsewhere or streamed" in complaint


def test_predict_takes_every_nth_point_of_a_finer_grid(tiny_run, darcy_folder, tmp_path):
    fine = np.load(darcy_folder / "test_coeff.npy")
    np.savez(tmp_path / "q.npz", coeff=fine[0])
    code, output = linearno("predict", tiny_run, tmp_path / "q.npz", "-o", tmp_path / "a.npz", "--stride", 4)
    assert code == 0, output
    test = open_splits(open_run(tiny_run).data).test
    expected = load(tiny_run).predict(test.inputs[:1]).reshape(9, 9)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "a.npz")["sol"]), expected)


def test_a_report_of_two_runs_is_one_page(tiny_run, tmp_path):
    other = shutil.copytree(tiny_run, tmp_path / "other")
    code, output = linearno("report", tiny_run, other, "-o", tmp_path / "page.html")
    assert code == 0, output
    page = (tmp_path / "page.html").read_text()
    assert page.count("darcy/linearno") >= 2


def test_models_recipes_and_doctor_say_what_there_is():
    assert "transolver" in linearno("models")[1]
    assert "temperature" in linearno("models", "linearno")[1]
    assert "darcy/linearno" in linearno("recipes")[1]
    assert yaml.safe_load(linearno("recipes", "darcy/linearno")[1])["training"]["epochs"] == 500
    doctor = linearno("doctor")[1]
    assert "torch" in doctor
    assert "precision" in doctor


class TestBadInput:
    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["train", "darcy/linearon"], "unknown recipe 'darcy/linearon'; did you mean 'darcy/linearno'"),
            (
                ["train", "darcy/linearno", "--set", "model.depht=3"],
                "model.depht: no such field; did you mean 'depth'",
            ),
            (["train", "darcy/linearno", "--set", "training.epochs=many"], "training.epochs: "),
            (["train", "darcy/linearno", "--set", "model.name=transolvr"], "unknown model 'transolvr'"),
            (
                ["train", "darcy/linearno", "--set", "data.name=dracy"],
                "unknown dataset 'dracy'; did you mean 'darcy'",
            ),
            (["train", "nowhere.yaml"], "nowhere.yaml does not exist"),
            (["models", "linearon"], "unknown model 'linearon'; did you mean 'linearno'"),
            (["recipes", "darci/linearno"], "unknown recipe 'darci/linearno'; did you mean 'darcy/linearno'"),
            (["evaluate", "nowhere"], "nowhere does not exist; give a run folder"),
            (["report", "nowhere"], "nowhere"),
        ],
    )
    def test_is_answered_in_one_line(self, args, message):
        assert message in refused(*args)

    def test_settings_that_do_not_fit_together(self, tiny, tmp_path):
        change = [*tiny, "--set", "model.heads=7", "--out", tmp_path / "run"]
        assert "width=16 is not a multiple of heads=7" in refused("train", "darcy/linearno", *change)
        assert not (tmp_path / "run").exists()

    def test_cuda_asked_for_and_absent(self, tiny, tmp_path):
        if torch.cuda.is_available():
            assert "this machine has" in refused("train", "darcy/linearno", *tiny, "--device", "cuda:99")
            return
        line = refused("train", "darcy/linearno", *tiny, "--out", tmp_path / "run", "--device", "cuda")
        assert "this machine has no CUDA device" in line
        assert not (tmp_path / "run").exists()

    def test_a_folder_that_is_no_run(self, tmp_path):
        assert "model.json does not exist" in refused("evaluate", tmp_path)
        assert "model.json does not exist" in refused("predict", tmp_path, tmp_path / "q.npz")

    def test_a_run_of_another_version(self, tiny_run, tmp_path):
        folder = shutil.copytree(tiny_run, tmp_path / "run")
        card = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(card | {"format": 7}))
        assert "format 7" in refused("evaluate", folder)
        assert "format" in refused("report", folder)

    def test_a_checkpoint_of_another_configuration(self, tiny_run, tiny, tmp_path):
        folder = shutil.copytree(tiny_run, tmp_path / "run")
        line = refused("train", "darcy/linearno", *tiny, "--set", "training.lr=0.1", "--out", folder)
        assert "training.lr was 0.001, now 0.1" in line

    def test_a_place_that_cannot_be_written(self, tiny, tmp_path):
        (tmp_path / "file").write_text("in the way")
        assert "cannot write to" in refused(
            "train", "darcy/linearno", *tiny, "--out", tmp_path / "file" / "run"
        )

    def test_a_full_disk(self, tiny_run, tmp_path, monkeypatch):
        def full(*args, **kwargs):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        assert "No space left on device" in refused("report", tiny_run, "-o", tmp_path / "page.html")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"coef": np.ones((9, 9))}, "holds no 'coeff'; did you mean 'coef'"),
            ({"coeff": np.ones((8, 9))}, "the model answers on (9, 9)"),
            ({"coeff": np.full((2, 9, 9), np.nan)}, "coeff of sample 0 holds NaN or infinite values"),
            ({"coeff": np.array(["a"], dtype=object)}, "truncated or holds no plain arrays"),
        ],
    )
    def test_a_question_that_does_not_fit(self, tiny_run, tmp_path, arrays, message):
        np.savez(tmp_path / "q.npz", **arrays)
        assert message in refused("predict", tiny_run, tmp_path / "q.npz", "-o", tmp_path / "a.npz")
        assert not (tmp_path / "a.npz").exists()

    def test_a_question_that_is_cut_short_or_of_another_kind(self, tiny_run, tmp_path):
        np.savez(tmp_path / "q.npz", coeff=np.ones((9, 9)))
        (tmp_path / "cut.npz").write_bytes((tmp_path / "q.npz").read_bytes()[:-60])
        assert "truncated" in refused("predict", tiny_run, tmp_path / "cut.npz")
        (tmp_path / "q.txt").write_text("1 2 3")
        assert "expected one of .npz, .mat" in refused("predict", tiny_run, tmp_path / "q.txt")
        assert "expected one of .npz, .mat" in refused(
            "predict", tiny_run, tmp_path / "q.npz", "-o", tmp_path / "a.txt"
        )
