"""Settings that do not fit the data are one line, before anything is trained."""

import pytest

from tests.commands import refused


@pytest.mark.parametrize(
    ("recipe", "change", "complaint"),
    [
        ("darcy/fno", "model.modes=40", "resolves at most (16, 17); set fewer modes"),
        ("darcy/galerkin", "model.heads=7", "width=128 is not a multiple of heads=7; the next that is: 133"),
        ("darcy/graphsage", "model.graph=data", "without model.graph=data the model finds edges"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused_before_training(
    recipe, change, complaint, darcy_folder, tmp_path
):
    changes = (f"data.root={darcy_folder}", "data.train=8", "data.test=2", "data.stride=2", change)
    options = [word for each in changes for word in ("--set", each)]
    said = refused("train", recipe, *options, "--out", tmp_path / "run")
    assert complaint in said
    assert not (tmp_path / "run").exists()
