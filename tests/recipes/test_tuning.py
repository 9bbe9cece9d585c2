"""The search for settings keeps the best of what it has tried, and records all of it."""

import json

import numpy as np
import pytest

from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.recipes import RECIPES, tuning
from linearno.recipes.model_choice import CHOICE
from linearno.run_folder import open_run
from tests.commands import linearno, refused
from tests.meshes.mesh_examples import scattered


@pytest.fixture
def dataset(tmp_path):
    """Eight clouds of points."""
    root = tmp_path / "cases"
    root.mkdir()
    for number in range(8):
        points = scattered(20 + number, 2)
        np.savez(root / f"case_{number}.npz", points=points, p=points[:, 0] + number, speed=float(number))
    assert (
        linearno("init", root, "--out", tmp_path / "d.yaml", "--targets", "p", "--globals", "speed")[0] == 0
    )
    return tmp_path / "d.yaml"


def test_halving_keeps_the_settings_with_the_smallest_error_and_trains_them_longer():
    settings, seconds = [(f"training.lr={number}",) for number in range(8)], []

    def attempt(changes, number, share):
        seconds.append(share)
        errors = {settings[0]: None, settings[5]: 0.1}
        return tuning.Trial(changes, number, 1, share, errors.get(changes, 0.5))

    found, trials = tuning.successive_halving(settings, attempt, 60.0)
    assert found == settings[5]
    assert [one.round for one in trials] == [1] * 8 + [2] * 4 + [3] * 2
    assert settings[0] not in [one.changes for one in trials[8:]]
    assert sum(seconds) == pytest.approx(60)
    assert seconds[8] == pytest.approx(2 * seconds[0])


def test_a_search_in_which_nothing_can_be_trained_is_an_error():
    with pytest.raises(UserError, match="no setting could be trained: not finite"):
        tuning.successive_halving(
            [("a=1",), ("a=2",)],
            lambda changes, number, share: tuning.Trial(changes, number, 1, share, None, "not finite"),
            1.0,
        )


def test_settings_are_around_those_of_the_run_which_come_first():
    config = override(RECIPES["elasticity/linearno"](), ["training.validation=2"])
    settings = tuning.candidates(config)
    assert len(set(settings)) == tuning.TRIALS
    assert override(config, list(settings[0])) == config
    for changes in settings:
        model = override(config, list(changes)).model
        assert model.width % model.heads == 0


@pytest.mark.slow
def test_the_best_settings_are_trained_and_all_are_recorded(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "TRIALS", 2)
    run = tmp_path / "run"
    words = ("train", dataset, "--minutes", 0.01, "--tune", 0.02, "--out", run, "--device", "cpu")
    code, output = linearno(*words)
    assert code == 0, output
    record = json.loads((run / CHOICE).read_text())["tuning"]
    assert len(record["tried"]) == 2
    best = min(record["tried"], key=lambda one: one["error"])
    assert record["best"] == best["changes"]
    config = open_run(run)
    values = {"training.lr": config.training.lr, "model.width": config.model.width}
    for change in best["changes"]:
        name, _, value = change.partition("=")
        assert values.get(name, float(value)) == float(value)
    code, output = linearno(*words)  # as after an interruption: no new search
    assert code == 0, output
    assert "tuning: about" not in output
    assert "leave it out" in refused(*words, "--set", "model.name=linearno")
