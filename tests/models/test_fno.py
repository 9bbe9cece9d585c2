"""Fourier neural operators on grids of any number of axes, and on point clouds through a latent grid."""

import pytest
import torch
from torch import nn

from linearno.core.errors import UserError
from linearno.data import FieldSpec
from linearno.models import MODELS, build_model
from linearno.models.fno import FNO
from linearno.models.geo_fno import GeoFNO
from linearno.nn.grid_operator import PaddedGrid
from linearno.ops.ragged import offsets_of

CLOUD = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",))


def question(points, coords=2, inputs=1, samples=2):
    return torch.rand(samples, points, coords), torch.rand(samples, points, inputs)


@pytest.mark.parametrize("grid", [(16,), (12, 17), (6, 5, 7)])
def test_grids_of_one_to_three_axes(grid):
    points = torch.Size(grid).numel()
    model = FNO(coords=len(grid), inputs=1, outputs=2, grid=grid, width=4, modes=3, depth=2)
    coords, inputs = question(points, len(grid))
    out = model(coords, inputs)
    assert out.shape == (2, points, 2)
    out.sum().backward()
    assert all(weight.grad.abs().max() > 0 for weight in model.parameters())


@pytest.mark.parametrize("grid", [(16, 12), (12, 16), (16, 32), (7, 9)])
@pytest.mark.parametrize(("padding", "multiple"), [(0, 16), (8, 1), (0, 1)])
def test_padding_is_cut_off_again_where_some_axes_need_none(grid, padding, multiple):
    frame = PaddedGrid(grid, padding, multiple)
    h = torch.rand(2, torch.Size(grid).numel(), 3)
    assert torch.equal(frame(h, h, nn.Identity()), h)
    shapes = []
    frame(h, h, lambda image: shapes.append(image.shape) or image)
    assert shapes == [(2, 3, *frame.grid)]
    assert all(n % multiple == 0 and n >= m + padding for n, m in zip(frame.grid, grid, strict=True))


def test_modes_above_the_nyquist_frequency_are_refused():
    with pytest.raises(UserError, match=r"modes=\(9, 9\): a grid of \(16, 16\) points, padding included"):
        FNO(coords=2, outputs=1, grid=(10, 10), modes=9)
    with pytest.raises(UserError, match=r"modes=\(3, 3\): expected one number, or one for each of 3 axes"):
        FNO(coords=3, outputs=1, grid=(10, 10, 10), modes=(3, 3))
    with pytest.raises(UserError, match=r"modes=\(12, 12\): a grid of \(16, 16\)"):
        FNO(coords=2, outputs=1, grid=None, latent=16)


@pytest.mark.parametrize("name", ["fno", "u-fno", "f-fno", "lsm"])
def test_point_clouds_are_refused_when_the_run_is_built_unless_there_is_a_latent_grid(name):
    config = MODELS[name].config
    with pytest.raises(UserError, match=f"model '{name}' needs data on a grid, these have none"):
        build_model(config.make({"name": name}), CLOUD)
    settings = {"latent": 32, "width": 8, "modes": 2}
    model = build_model(config.make({"name": name, **settings}), CLOUD).eval()
    coords, inputs = question(9)
    assert model(coords, inputs).shape == (2, 9, 1)
    packed = model(coords.flatten(0, 1)[None], inputs.flatten(0, 1)[None], segments=offsets_of([9, 9]))
    torch.testing.assert_close(packed[0], model(coords, inputs).flatten(0, 1), rtol=1e-4, atol=1e-6)


def test_a_latent_grid_is_for_points_of_the_plane():
    with pytest.raises(UserError, match="a latent grid takes points of the plane, got 3 coordinates"):
        FNO(coords=3, outputs=1, grid=None, latent=32)


def test_wrong_questions_are_refused():
    model = FNO(coords=2, inputs=1, outputs=1, grid=(5, 4), width=4, modes=2)
    coords, inputs = question(20)
    with pytest.raises(UserError, match=r"built for the grid \(5, 4\) = 20 points, got 19"):
        model(coords[:, :19], inputs[:, :19])
    with pytest.raises(UserError, match="takes 1 inputs at a point, got 0"):
        model(coords)
    with pytest.raises(UserError, match="takes no time"):
        model(coords, inputs, time=torch.rand(2, 1))
    with pytest.raises(UserError, match="bound to its grid and takes no packed meshes"):
        model(coords[:1], inputs[:1], segments=offsets_of([20]))


def test_what_stands_for_the_coordinates():
    """Distances from the grid see no coordinates, appended grid points need a grid."""
    model = FNO(coords=2, inputs=1, outputs=1, grid=(5, 4), width=4, modes=2, unified={"ref": 3})
    coords, inputs = question(20)
    assert model.features.channels == 9 + 1
    assert torch.equal(model(coords, inputs), model(torch.rand_like(coords), inputs))
    appended = FNO(coords=2, inputs=1, outputs=1, grid=(5, 4), width=4, modes=2, append="grid")
    assert torch.equal(appended.features(coords, inputs)[0, -1, 2:4], torch.ones(2))
    with pytest.raises(UserError, match="append=grid needs points of a grid, these are scattered"):
        FNO(coords=2, outputs=1, grid=None, latent=32, append="grid")


def test_geo_fno_on_a_grid_is_an_fno_with_other_settings():
    sizes = {"coords": 2, "inputs": 1, "outputs": 1, "grid": (15, 10), "width": 6, "modes": (4, 3)}
    geo = GeoFNO(**sizes)
    form = {"lift_layers": 1, "head_width": 128, "append": "grid", "padding": 8, "multiple": 1}
    fno = FNO(**sizes, **form)
    fno.load_state_dict(geo.state_dict())
    coords, inputs = question(150)
    assert torch.equal(fno(coords, inputs), geo(coords, inputs))


def test_three_axes_have_the_published_number_of_parameters():
    """The published space-time model for plasticity: 12 features of a point in all."""
    with torch.device("meta"):
        sizes = {"coords": 3, "inputs": 6, "outputs": 4, "grid": (101, 31, 20)}
        model = GeoFNO(**sizes, modes=(12, 12, 8))
    complex_weights = sum(layer.spectral.mixing.weight.numel() // 2 for layer in model.network)
    assert sum(weight.numel() for weight in model.parameters()) - complex_weights == 18_883_748


def test_bf16_leaves_coordinates_transforms_and_outputs_in_float32():
    model = FNO(coords=2, inputs=1, outputs=1, grid=(12, 12), width=8, modes=3)
    coords, inputs = question(144)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(coords, inputs)
    assert out.dtype == torch.float32
    exact = model(coords, inputs)
    assert (out - exact).norm() <= 0.02 * exact.norm()
    assert not torch.equal(out, exact)
