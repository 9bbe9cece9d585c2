"""What only one of the models with learned slices does."""

import pytest
import torch

from linearno import fit
from linearno.core.errors import UserError
from linearno.data import FieldData, FieldSpec
from linearno.models import build_model
from linearno.models.cross_lno import CrossLNO
from linearno.models.deeponet import DeepONet
from linearno.models.flare import FLARE
from linearno.models.flare_plus import FLAREPlus
from linearno.models.lno import LNO
from linearno.models.lrsa import LRSA
from linearno.models.transolver_plus import TransolverPlus
from linearno.nn.embeddings import unit_grid
from linearno.nn.observations import join_observations, require_points
from linearno.nn.protocol import Queryable, Recomputable, capturable, completes, fixed_grid, spec_of
from linearno.ops.ragged import offsets_of
from linearno.training import Timed

TINY = {"coords": 2, "inputs": 1, "outputs": 1, "width": 16, "depth": 2, "heads": 2, "slices": 5}
POINTWISE = [TransolverPlus, LNO, LRSA, FLARE, FLAREPlus]
COMPLETERS = [CrossLNO, DeepONet]


def tiny(cls, **more):
    without = {"slices"} if cls is DeepONet else set()
    model = cls(**{name: value for name, value in (TINY | more).items() if name not in without})
    for weight in model.parameters():
        if weight.dim() > 1:  # as drawn they are so small that differences drown in rounding
            torch.nn.init.normal_(weight, std=0.3)
    return model.double().eval()


def points(*shape):
    return torch.rand(shape, dtype=torch.float64)


@pytest.mark.parametrize("cls", [*POINTWISE, *COMPLETERS])
def test_heads_that_do_not_divide_the_width_are_refused(cls):
    with pytest.raises(UserError, match="width=18 is not a multiple of heads=4; the next that is: 20"):
        cls(coords=2, inputs=1, outputs=1, width=18, heads=4)


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (LNO, {"trunk": "grid"}, r"needs grid=\(rows, columns\)"),
        (LRSA, {"point_mlp": "conv"}, r"needs grid=\(rows, columns\)"),
        (LRSA, {"mlp_ratio": 0.001}, r"mlp_ratio=0.001: no hidden features are left"),
        (LRSA, {"mlp_ratio": -1.0}, r"mlp_ratio: input should be greater than 0"),
        (LRSA, {"fourier": {"count": 0}}, r"fourier.count: input should be greater than 0"),
        (TransolverPlus, {"noise": "sometimes"}, r"noise: .*'training', 'always' or 'never'"),
        (TransolverPlus, {"condition": -1}, r"condition: input should be greater than or equal to 0"),
        (FLARE, {"slices": 0}, r"slices: input should be greater than 0"),
        (CrossLNO, {"inputs": 0}, r"CrossLNO reconstructs a field .* needs inputs=1 or more"),
        (DeepONet, {"inputs": 0}, r"DeepONet reconstructs a field .* needs inputs=1 or more"),
        (DeepONet, {"width": 15, "heads": 3}, r"width=15 is odd; .* take 16"),
        (DeepONet, {"dropout": 1.0}, r"dropout: input should be less than 1"),
    ],
)
def test_settings_that_make_no_model_are_refused_in_one_line(cls, settings, message):
    sizes = {"coords": 2, "inputs": 1, "outputs": 1}
    with pytest.raises(UserError, match=message) as error:
        cls(**sizes | settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cls", POINTWISE)
def test_inputs_that_do_not_fit_are_refused_in_one_line(cls):
    model = tiny(cls)
    with pytest.raises(UserError, match="takes 3 features a point, got 2: 2 coordinates and 0 inputs"):
        model(points(2, 7, 2))
    with pytest.raises(UserError, match="this model takes no time input"):
        model(points(2, 7, 2), points(2, 7, 1), time=points(2, 1))
    with pytest.raises(UserError, match="this model takes a time input"):
        tiny(cls, time=True)(points(2, 7, 2), points(2, 7, 1))
    with pytest.raises(UserError, match=r"packed meshes are one batch, coords \(1, T, X\)"):
        model(points(2, 8, 2), points(2, 8, 1), segments=offsets_of([3, 5]))


@pytest.mark.parametrize("cls", POINTWISE)
def test_packed_meshes_have_a_time_each(cls):
    model = tiny(cls, time=True)
    sizes, coords, inputs, time = [5, 1, 9], points(1, 15, 2), points(1, 15, 1), points(3, 1)
    parts = zip(coords.split(sizes, dim=1), inputs.split(sizes, dim=1), time[:, None], strict=True)
    apart = torch.cat([model(x, a, time=t) for x, a, t in parts], dim=1)
    torch.testing.assert_close(model(coords, inputs, time=time, segments=offsets_of(sizes)), apart)


@pytest.mark.parametrize("cls", [TransolverPlus, LRSA, FLARE, FLAREPlus])
def test_recomputed_blocks_have_the_same_gradients(cls):
    """With noise too, which is drawn again as it was."""
    model = tiny(cls).train()
    coords, inputs, found = points(2, 9, 2), points(2, 9, 1), []
    assert isinstance(model, Recomputable)
    for recompute in (False, True):
        model.recompute = recompute
        torch.manual_seed(3)
        out = model(coords, inputs)
        found.append((out, torch.autograd.grad(out.square().sum(), list(model.parameters()))))
    torch.testing.assert_close(*found)
    assert capturable(model) == (cls is not TransolverPlus)


def test_the_noise_of_transolver_plus_is_added_in_training_only_by_default():
    coords, inputs = points(1, 9, 2), points(1, 9, 1)
    for noise, in_training, in_test in (
        ("training", True, False),
        ("always", True, True),
        ("never", False, False),
    ):
        model = tiny(TransolverPlus, noise=noise)
        for training, random in ((True, in_training), (False, in_test)):
            model.train(training)
            same = torch.equal(model(coords, inputs), model(coords, inputs))
            assert same != random, (noise, training)


def test_a_condition_shifts_all_points_of_its_sample():
    model = tiny(TransolverPlus, condition=3)
    coords, inputs, condition = points(2, 9, 2), points(2, 9, 1), points(2, 3)
    changed = condition.clone()
    changed[1] += 1
    before, after = (model(coords, inputs, condition=each) for each in (condition, changed))
    torch.testing.assert_close(before[0], after[0])
    assert ((before[1] - after[1]).abs() > 0).all()
    with pytest.raises(UserError, match="this model takes a condition"):
        model(coords, inputs)
    with pytest.raises(UserError, match="this model takes no condition"):
        tiny(TransolverPlus)(coords, inputs, condition=condition)


def test_a_condition_comes_from_the_data():
    spec = FieldSpec(coords=("x", "y"), outputs=("u",), aux={"condition": "sample"})
    data = FieldData(spec, torch.rand(9, 2), None, torch.rand(4, 9, 1), aux={"condition": torch.rand(4, 2)})
    settings = {"width": 8, "depth": 1, "heads": 2, "slices": 3, "condition": 2}
    bundle = fit("transolver++", data, settings=settings, epochs=1, batch=2, device="cpu")
    assert bundle.predict_data(data, batch=2).isfinite().all()


def test_with_masses_the_result_does_not_depend_on_where_points_are_dense():
    """Every third point twice with half of its mass: the same discretised integral."""
    model = tiny(LRSA, mass=True)
    coords, inputs, mass = points(2, 9, 2), points(2, 9, 1), 0.1 + points(2, 9, 1)
    expected = model(coords, inputs, mass=mass)
    halved = mass.clone()
    halved[:, ::3] /= 2
    doubled = [torch.cat([part, part[:, ::3]], dim=1) for part in (coords, inputs, halved)]
    torch.testing.assert_close(model(*doubled[:2], mass=doubled[2])[:, :9], expected)
    torch.testing.assert_close(model(coords, inputs, mass=7 * mass), expected)
    with pytest.raises(UserError, match="this model takes a mass of its points"):
        model(coords, inputs)
    with pytest.raises(UserError, match="this model takes no mass of its points"):
        tiny(LRSA)(coords, inputs, mass=mass)


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({}, 3),
        ({"mix_channels": False}, 2),
        ({"mix_slices": False}, 1),
        ({"mix_channels": False, "mix_slices": False}, 0),
    ],
)
def test_each_step_among_the_slices_of_lrsa_is_a_switch(settings, layers):
    model = tiny(LRSA, **settings)
    assert len(model.blocks[0].mix) == layers
    out = model(points(1, 9, 2), points(1, 9, 1))
    out.square().sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_frequencies_of_lrsa_are_sines_and_cosines_of_each_coordinate():
    model = tiny(LRSA, fourier={"count": 2, "low": 0.0, "high": 1.0})
    x, a = torch.tensor([[[0.5, 0.25]]], dtype=torch.float64), points(1, 1, 1)
    features = model.lift[0](torch.cat([x, a], dim=-1))[0, 0]
    angles = torch.pi * torch.tensor([0.5, 1.0, 0.25, 0.5], dtype=torch.float64)
    torch.testing.assert_close(features, torch.cat([angles.sin(), angles.cos(), x[0, 0], a[0, 0]]))
    assert isinstance(tiny(LRSA, fourier=None).lift, torch.nn.Linear)


def test_on_a_grid_the_scores_of_lno_depend_on_the_position_in_it_alone():
    grid, settings = (3, 4), spec_of(tiny(LNO)).config.model_dump() | {"trunk": "grid"}
    spec = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",), grid=grid)
    model = build_model(type(spec_of(tiny(LNO)).config).make(settings), spec).double().eval()
    assert fixed_grid(model) == grid
    seen = []
    model.trunk.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(points(2, 12, 2), points(2, 12, 1))
    torch.testing.assert_close(seen[0], unit_grid(grid).double().expand(2, -1, -1))
    assert model.branch.input.in_features == 2 + 2 + 1
    with pytest.raises(UserError, match="this model was built for 12 points, got 11"):
        model(points(2, 11, 2), points(2, 11, 1))
    with pytest.raises(UserError, match="takes no packed meshes; build it with trunk=coords"):
        model(points(1, 12, 2), points(1, 12, 1), segments=offsets_of([5, 7]))


@pytest.mark.parametrize("cls", POINTWISE)
def test_frames_are_learnt_by_their_time(cls):
    spec = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u0", "u1", "u2"))
    data = FieldData(spec, torch.rand(9, 2), torch.rand(4, 9, 1), torch.rand(4, 9, 3))
    settings = {"width": 8, "depth": 1, "heads": 2, "slices": 3, "time": True}
    name = spec_of(tiny(cls)).config.name
    bundle = fit(name, data, settings=settings, task=Timed(), epochs=1, batch=2, device="cpu")
    assert bundle.predict_data(data, batch=2).shape == (4, 9, 3)


@pytest.mark.parametrize("cls", COMPLETERS)
def test_a_completer_encodes_once_and_is_queried_anywhere(cls):
    model = tiny(cls)
    coords, inputs, where = points(2, 9, 2), points(2, 9, 1), points(2, 20, 2)
    assert isinstance(model, Queryable)
    assert completes(model)
    states = model.encode(coords, inputs)
    expected = model(coords, inputs, points=where)
    parts = [model.query(part, states) for part in where.split(7, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected)
    torch.testing.assert_close(model(coords, inputs), model.query(coords, states))


@pytest.mark.parametrize("cls", COMPLETERS)
def test_observations_that_do_not_fit_are_refused(cls):
    model = tiny(cls)
    coords, inputs = points(2, 9, 2), points(2, 9, 1)
    with pytest.raises(UserError, match="takes 1 values an observation, got 2"):
        model(coords, points(2, 9, 2))
    with pytest.raises(UserError, match="takes 2 coordinates, got 3"):
        model.query(points(2, 4, 3), model.encode(coords, inputs))
    with pytest.raises(UserError, match="do not fit together"):
        join_observations(coords, points(2, 8, 1), 2, 1)
    with pytest.raises(UserError, match="there are no observations"):
        model(coords[:, :0], inputs[:, :0])
    with pytest.raises(UserError, match=r"points are \(3, 4, 2\), but the observations are of 2 samples"):
        require_points(points(3, 4, 2), 2, model.encode(coords, inputs))
