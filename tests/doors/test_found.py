"""Models and data of a user's own: they train and load to the same numbers, or are refused in one line."""

import numpy as np
import pytest
import torch
from torch import nn

import linearno
from linearno.core.config import override
from linearno.core.errors import UserError
from linearno.data import FieldData, FieldSpec
from linearno.experiment import run
from linearno.models import model
from linearno.recipes import RECIPES
from tests.commands import in_a_new_process, refused

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
DARCY = [
    "data.train=4",
    "data.test=2",
    "data.stride=4",
    "training.epochs=1",
    "training.loss.gradient_weight=0",
]


def small(recipe, darcy_folder):
    return override(RECIPES[recipe](), [*DARCY, f"data.root={darcy_folder}"])


@model("found-spectral", needs=("grid",))
class Spectral(nn.Module):
    """One complex weight for each mode of a grid."""

    def __init__(self, *, coords: int, inputs: int, outputs: int, grid: tuple[int, ...], modes: int = 3):
        super().__init__()
        self.grid, self.modes = grid, modes
        self.weight = nn.Parameter(torch.randn(coords + inputs, outputs, modes, modes, dtype=torch.complex64))

    def forward(self, coords, inputs=None):
        fields = torch.cat([coords, inputs], dim=-1).float().unflatten(1, self.grid).movedim(-1, 1)
        kept = torch.fft.rfft2(fields)[..., : self.modes, : self.modes]
        mixed = torch.einsum("bixy,ioxy->boxy", kept, self.weight)
        return torch.fft.irfft2(mixed, s=self.grid).flatten(2).mT


def test_complex_weights_train(darcy_folder, tmp_path):
    metrics = run(small("darcy/found-spectral", darcy_folder), tmp_path / "run", CPU)
    assert np.isfinite(metrics["relative_l2"]["mean"])


@model("found-clock", needs=lambda settings: ("time",) if settings.clock else ())
class Clock(nn.Module):
    """Takes a time if its settings say so."""

    def __init__(self, *, coords: int, inputs: int, outputs: int, clock: bool = False):
        super().__init__()
        self.net = nn.Linear(coords + inputs + clock, outputs)

    def forward(self, coords, inputs=None, time=None):
        parts = (
            [coords, inputs] if time is None else [coords, inputs, time[:, None].expand_as(coords[..., :1])]
        )
        return self.net(torch.cat(parts, dim=-1))


def test_a_recipe_whose_model_does_not_fit_its_task_is_one_line(tmp_path):
    line = refused("train", "plasticity/found-clock", "--out", tmp_path / "run")
    assert "task=timed does not fit model=found-clock" in line


def test_a_setting_can_make_a_model_fit_the_task_of_a_recipe(tmp_path):
    line = refused(
        "train",
        "plasticity/found-clock",
        "--set=model.clock=true",
        "--set=data.root=nowhere",
        "--out",
        tmp_path,
    )
    assert "nowhere" in line  # the model fits; only the data are missing


@model("found-computed")
class Computed(nn.Module):
    """A number that its constructor computes with torch."""

    def __init__(self, *, coords: int, inputs: int, outputs: int):
        super().__init__()
        self.top = torch.linspace(0, 1, 4).max().item()
        self.net = nn.Linear(coords + inputs, outputs)

    def forward(self, coords, inputs=None):
        return self.top * self.net(torch.cat([coords, inputs], dim=-1))


@model("found-random")
class Random(nn.Module):
    """Random features in a buffer that is not saved."""

    def __init__(self, *, coords: int, inputs: int, outputs: int, width: int = 8):
        super().__init__()
        self.register_buffer("features", torch.randn(coords + inputs, width), persistent=False)
        self.net = nn.Linear(width, outputs)

    def forward(self, coords, inputs=None):
        return self.net(torch.sin(torch.cat([coords, inputs], dim=-1) @ self.features))


@pytest.mark.parametrize("name", ["found-computed", "found-random"])
def test_what_was_trained_loads_to_the_same_numbers_or_is_refused_before_training(
    darcy_folder, tmp_path, name
):
    config, inputs = small(f"darcy/{name}", darcy_folder), torch.rand(1, 81, 1)
    try:
        run(config, tmp_path / "run", CPU)
    except UserError:
        assert not (tmp_path / "run").exists()
        return
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)  # as in another process
        found.append(linearno.load(tmp_path / "run").predict(inputs))
    assert torch.equal(*found)


def field_data(outputs=("u",), inputs=("a",), edges=None):
    aux = {} if edges is None else {"edges": edges}
    kinds = {"edges": "edge"} if aux else {}
    spec = FieldSpec(coords=("x", "y"), inputs=inputs, outputs=outputs, aux=kinds)
    return FieldData(spec, torch.rand(5, 2), torch.rand(3, 5, 1), torch.rand(3, 5, 1), aux=aux)


@pytest.mark.parametrize(
    "wrong",
    [
        {"outputs": ("u", "v")},  # of one channel: a loss would broadcast
        {"inputs": ()},  # there are some: they would be left out
        {"edges": torch.tensor([[0, 1], [-1, 0]])},  # the last point of the sample before
        {"edges": torch.tensor([[0, 1], [5, 0]])},  # the first point of the next sample
    ],
    ids=["outputs", "inputs", "negative edge", "edge too far"],
)
def test_data_that_do_not_fit_their_description_are_refused(wrong):
    field_data().check()
    with pytest.raises(UserError):
        field_data(**wrong).check()


FIRST = '''
import torch
from torch import nn
from linearno import model

@model("found-grows")
class Grows(nn.Module):
    """A model that gets a setting later."""
    def __init__(self, *, coords: int, inputs: int, outputs: int, width: int = 4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(coords + inputs, width), nn.GELU(), nn.Linear(width, outputs))
    def forward(self, coords, inputs=None):
        return self.net(torch.cat([coords, inputs], dim=-1))
'''


def test_a_model_that_gets_a_setting_with_a_default_leaves_its_runs_usable(darcy_folder, tmp_path):
    old, new, out = tmp_path / "grows_old.py", tmp_path / "grows_new.py", tmp_path / "run"
    old.write_text(FIRST)
    new.write_text(FIRST.replace("width: int = 4", "width: int = 4, more: int = 3"))
    changes = [f"--set={change}" for change in [*DARCY, f"data.root={darcy_folder}"]]
    ended = in_a_new_process("train", "darcy/found-grows", "--import", old, *changes, "--out", out)
    assert ended.returncode == 0, ended.stderr
    before = (out / "config.yaml").read_text()
    ended = in_a_new_process("train", out, "--import", new)
    if ended.returncode:  # refused: then nothing has changed
        assert (out / "config.yaml").read_text() == before
    assert in_a_new_process("train", out, "--import", old).returncode == 0
    assert in_a_new_process("train", out, "--more-epochs", 1, "--import", new).returncode == 0
