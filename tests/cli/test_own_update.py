"""New cases in a folder: `init --update`, and training that continues from an earlier run."""

import numpy as np
import pytest
import torch
import yaml

from linearno import load
from linearno.run_folder import open_run
from tests.commands import linearno, refused
from tests.meshes.mesh_examples import SET, scattered

pytestmark = pytest.mark.slow


def write_case(root, number):
    points = scattered(20 + number, 2)
    np.savez(root / f"case_{number:02d}.npz", points=points, p=points[:, 0] + number, q=points[:, 1])


@pytest.fixture
def dataset(tmp_path):
    """A dataset.yaml of eight cases, with choices of a user."""
    root = tmp_path / "cases"
    root.mkdir()
    for number in range(8):
        write_case(root, number)
    path = tmp_path / "dataset.yaml"
    code, output = linearno("init", root, "--out", path, "--targets", "p", "--test", "0.25")
    assert code == 0, output
    values = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(values | {"units": {"p": "Pa"}, "seed": 3}))
    return path


def test_new_cases_are_used_after_an_update_only_and_old_ones_keep_their_split(dataset, tmp_path):
    train = ("train", dataset, *SET, "--device", "cpu", "--out")
    assert linearno(*train, tmp_path / "run")[0] == 0
    before = {row.split(",")[-1] for row in (tmp_path / "run/per_sample.csv").read_text().split()[1:]}
    for number in range(8, 16):
        write_case(dataset.parent / "cases", number)
    code, output = linearno("evaluate", tmp_path / "run")
    assert code == 0, output
    again = {row.split(",")[-1] for row in (tmp_path / "run/per_sample.csv").read_text().split()[1:]}
    assert again == before
    code, output = linearno("init", "--update", dataset)
    assert code == 0, output
    assert "added: 8 cases (case_08, case_09, case_10, case_11, case_12, …)" in output
    assert "vanished: none" in output
    values = yaml.safe_load(dataset.read_text())
    assert (values["targets"], values["units"], values["seed"]) == (["p"], {"p": "Pa"}, 3)
    assert before < set(values["test"])
    assert len(values["test"]) == 4
    assert len(values["cases"]) == 16
    code, output = linearno(*train, tmp_path / "larger", "--init-from", tmp_path / "run")
    assert code == 0, output
    assert open_run(tmp_path / "larger").model == open_run(tmp_path / "run").model


def test_training_starts_from_the_weights_of_the_earlier_run(dataset, tmp_path):
    frozen = ("--set", "training.lr=1e-12", "--set", "training.weight_decay=0")
    assert linearno("train", dataset, *SET, "--device", "cpu", "--out", tmp_path / "run")[0] == 0
    write_case(dataset.parent / "cases", 8)
    assert linearno("init", "--update", dataset)[0] == 0
    words = ("train", dataset, "--set", "training.epochs=1", *frozen, "--device", "cpu")
    code, output = linearno(*words, "--init-from", tmp_path / "run", "--out", tmp_path / "larger")
    assert code == 0, output
    old, new = (load(tmp_path / name).model.state_dict() for name in ("run", "larger"))
    for name in old:
        torch.testing.assert_close(new[name], old[name], atol=1e-6, rtol=1e-4)


def test_vanished_cases_are_an_error_until_the_update(dataset, tmp_path):
    (dataset.parent / "cases" / "case_05.npz").unlink()
    words = ("train", dataset, *SET, "--device", "cpu", "--out", tmp_path / "run")
    assert "1 case (case_05): not in the folder any more" in refused(*words)
    code, output = linearno("init", "--update", dataset)
    assert code == 0, output
    assert "vanished: 1 case (case_05)" in output
    assert linearno(*words)[0] == 0
    assert "keeps the choices" in refused("init", "--update", dataset, "--targets", "q")
