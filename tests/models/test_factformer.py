"""What only FactFormer does."""

import pytest
import torch

from linearno.core.errors import UserError
from linearno.data import FieldSpec
from linearno.metrics.cost import count_flops
from linearno.models import MODELS, build_model
from linearno.models.factformer import FactFormer
from linearno.nn.protocol import fixed_grid
from linearno.ops.ragged import offsets_of

SIZES = {"coords": 2, "inputs": 1, "outputs": 1, "width": 16, "depth": 2, "heads": 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 18, "heads": 4}, "width=18 is not a multiple of heads=4; the next that is: 20"),
        ({"grid": None}, r"attends along the axes of a grid: give it, such as grid=\(85, 85\)"),
        ({"unified": {"ref": 3, "place": "positions"}}, "measures distances from the grid or the coords"),
        ({"mlp_ratio": 0}, "mlp_ratio: input should be greater than 0"),
    ],
)
def test_settings_that_make_no_model_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message) as error:
        FactFormer(**SIZES | {"grid": (5, 4)} | settings)
    assert "\n" not in str(error.value)


def test_a_point_cloud_is_refused_when_the_model_is_built():
    config = MODELS["factformer"].config.make({"name": "factformer"})
    spec = FieldSpec(coords=("x", "y"), inputs=(), outputs=("u",), grid=None)
    with pytest.raises(UserError, match="'factformer' needs data on a grid, these have none"):
        build_model(config, spec)


def test_points_that_are_not_those_of_the_grid_are_refused():
    model = FactFormer(**SIZES, grid=(5, 4))
    assert fixed_grid(model) == (5, 4)
    with pytest.raises(UserError, match=r"built for the grid \(5, 4\) = 20 points, got 21"):
        model(torch.rand(2, 21, 2), torch.rand(2, 21, 1))
    with pytest.raises(UserError, match="a model tied to a grid takes no packed meshes"):
        model(torch.rand(1, 20, 2), torch.rand(1, 20, 1), segments=offsets_of([8, 12]))


@pytest.mark.parametrize("grid", [(9,), (3, 4, 5)])
def test_lines_and_boxes_are_grids_too(grid):
    points = torch.Size(grid).numel()
    model = FactFormer(**SIZES | {"coords": len(grid)}, grid=grid)
    assert model(torch.rand(2, points, len(grid)), torch.rand(2, points, 1)).shape == (2, points, 1)


def test_the_cost_is_quadratic_in_the_points_of_an_axis_by_its_attention_alone():
    """A further row costs 2·2·B·W·rows·columns in each block: values mixed along the axis of the rows."""
    rows, columns, samples = (32, 64, 96), 16, 2
    counts = []
    for n in rows:
        model = FactFormer(**SIZES, grid=(n, columns))
        counts.append(
            count_flops(model, torch.rand(samples, n * columns, 2), torch.rand(samples, n * columns, 1))
        )
    curvature = counts[2] - 2 * counts[1] + counts[0]
    scores, mixing = 1, columns  # products of queries and keys, and of the kernel and values, per row pair
    assert curvature == 2 * 32**2 * 2 * samples * SIZES["width"] * SIZES["depth"] * (scores + mixing)
