"""What only one of the models with linear or factorised attention does."""

import pytest
import torch

from linearno import fit
from linearno.core.errors import UserError
from linearno.models.galerkin import GalerkinTransformer, PositionedGalerkinAttention
from linearno.models.gnot import GNOT, CrossGNOT, ExpertMlp, GnotBlock
from linearno.nn.latent_attention import merge_heads, split_heads
from linearno.nn.protocol import Queryable, Recomputable, capturable, completes, fixed_grid
from linearno.ops.ragged import offsets_of
from tests.commands import linearno
from tests.models.contract_models import data_of, entry_of, settings_of

TINY = {"coords": 2, "inputs": 1, "outputs": 1, "width": 16, "depth": 2, "heads": 2}
POINTWISE = [GalerkinTransformer, GNOT]


EXPORTED = ["galerkin", "ono"]  # cases of the contract, which exports all as graphs


def tiny(cls, **more):
    torch.manual_seed(0)
    model = cls(**TINY | more)
    for weight in model.parameters():
        if weight.dim() > 1:  # as drawn they are so small that differences drown in rounding
            torch.nn.init.normal_(weight, std=0.3)
    return model.double().eval()


def points(*shape):
    return torch.rand(shape, dtype=torch.float64)


@pytest.mark.parametrize("cls", [*POINTWISE, CrossGNOT])
def test_heads_that_do_not_divide_the_width_are_refused(cls):
    with pytest.raises(UserError, match="width=18 is not a multiple of heads=4; the next that is: 20"):
        cls(coords=2, inputs=1, outputs=1, width=18, heads=4)


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (GalerkinTransformer, {"form": "new"}, r"form: .*'library' or 'original'"),
        (GalerkinTransformer, {"unified": {"ref": 3}}, r"unified.place=grid needs points of a grid"),
        (GalerkinTransformer, {"append": "grid"}, r"append=grid needs points of a grid"),
        (GNOT, {"experts": 0}, r"experts: input should be greater than 0"),
        (CrossGNOT, {"inputs": 0}, r"CrossGNOT reconstructs a field .* needs inputs=1 or more"),
    ],
)
def test_settings_that_make_no_model_are_refused_in_one_line(cls, settings, message):
    with pytest.raises(UserError, match=message) as error:
        cls(**{"coords": 2, "inputs": 1, "outputs": 1} | settings)
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


@pytest.mark.parametrize("cls", POINTWISE)
def test_recomputed_blocks_have_the_same_gradients(cls):
    model = tiny(cls).train()
    coords, inputs, found = points(2, 9, 2), points(2, 9, 1), []
    assert isinstance(model, Recomputable)
    for recompute in (False, True):
        model.recompute = recompute
        torch.manual_seed(3)
        out = model(coords, inputs)
        found.append((out, torch.autograd.grad(out.square().sum(), list(model.parameters()))))
    torch.testing.assert_close(*found)
    assert capturable(model)


def test_distances_from_the_grid_bind_a_model_to_it():
    model = tiny(GalerkinTransformer, grid=(3, 4), unified={"ref": 3})
    assert fixed_grid(model) == (3, 4)
    coords, inputs = points(2, 12, 2), points(2, 12, 1)
    assert torch.equal(model(coords, inputs), model(torch.rand_like(coords), inputs))
    with pytest.raises(UserError, match="this model was built for 12 points, got 11"):
        model(points(2, 11, 2), points(2, 11, 1))
    with pytest.raises(UserError, match=r"takes no packed meshes; build it with unified\.place=coords"):
        model(points(1, 12, 2), points(1, 12, 1), segments=offsets_of([5, 7]))
    assert fixed_grid(tiny(GalerkinTransformer, grid=(3, 4))) is None


def test_every_head_of_the_original_galerkin_attention_sees_the_coordinates():
    """The kernel q kᵀ gains p p′ᵀ, and the output has the mean of the coordinates under that kernel."""
    torch.manual_seed(0)
    layer = PositionedGalerkinAttention(12, 3, coords=2).double()
    h, p = torch.randn(2, 9, 12, dtype=torch.float64), points(2, 9, 2)
    query, key, value = (split_heads(part(h), 3) for part in (layer.query, layer.key, layer.value))
    kernel = query @ layer.norm_key(key).mT + (p @ p.mT)[:, None]
    seen = torch.cat([p[:, None].expand(-1, 3, -1, -1), layer.norm_value(value)], dim=-1)
    torch.testing.assert_close(layer(h, p), layer.merge(merge_heads(kernel @ seen / 9)))


def test_the_original_galerkin_attention_starts_close_to_a_hundredth_of_the_features():
    model = GalerkinTransformer(coords=2, outputs=1, width=64, depth=1, heads=4, form="original")
    weight = model.blocks[0].attention.key.weight
    bound = 0.01 * (6 / (64 + 64)) ** 0.5
    assert (weight - 0.01 * torch.eye(64)).abs().max() <= bound


def test_experts_are_weighted_by_their_gates():
    torch.manual_seed(0)
    layer = ExpertMlp(6, hidden=5, experts=3).double()
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    gates = torch.randn(2, 7, 3, dtype=torch.float64).softmax(dim=-1)
    inner = zip(layer.inner.weight.chunk(3), layer.inner.bias.chunk(3), strict=True)
    outer = zip(layer.outer.weight.chunk(3, dim=1), layer.bias, strict=True)
    experts = [
        torch.nn.functional.gelu(x @ a.mT + shift) @ b.mT + bias
        for (a, shift), (b, bias) in zip(inner, outer, strict=True)
    ]
    expected = sum(gates[..., e, None] * out for e, out in enumerate(experts))
    torch.testing.assert_close(layer(x, gates), expected)


def test_gates_of_gnot_see_the_position_of_the_point():
    """Experts get the gates of their own point: softmax over the experts of a function of its coordinates."""
    block, seen = GnotBlock(16, 2, 1, 3, coords=2), []
    for experts in (block.cross_mlp, block.self_mlp):
        experts.register_forward_pre_hook(lambda module, given: seen.append(given[1]))
    p = torch.rand(1, 9, 2)
    block(torch.randn(1, 9, 16), torch.randn(1, 4, 16), p)
    assert torch.equal(seen[0], seen[1])
    torch.testing.assert_close(seen[0], block.gate(p).softmax(dim=-1))
    torch.testing.assert_close(seen[0].sum(dim=-1), torch.ones(1, 9))


def test_the_original_gnot_equals_the_cross_model_queried_at_its_observations():
    completer = tiny(CrossGNOT)
    operator = tiny(GNOT, form="original", experts=2)
    names = {"branch.": "lift.network."}
    weights = {
        next((new + name.removeprefix(old) for old, new in names.items() if name.startswith(old)), name): part
        for name, part in completer.state_dict().items()
    }
    operator.load_state_dict(weights)
    coords, inputs = points(2, 9, 2), points(2, 9, 1)
    torch.testing.assert_close(operator(coords, inputs), completer(coords, inputs))


def test_a_completer_that_mixes_its_query_points_is_not_queried_in_parts():
    model = tiny(CrossGNOT)
    coords, inputs, where = points(2, 9, 2), points(2, 9, 1), points(2, 20, 2)
    assert completes(model)
    assert not isinstance(model, Queryable)
    assert model(coords, inputs, points=where).shape == (2, 20, 1)
    with pytest.raises(UserError, match="takes 1 values an observation, got 2"):
        model(coords, points(2, 9, 2))


@pytest.mark.slow
@pytest.mark.parametrize("case", EXPORTED)
def test_an_onnx_file_predicts_as_the_run_that_it_came_from(case, tmp_path):
    pytest.importorskip("onnxruntime")
    fit(
        *(entry_of(case).name, data_of(case)),
        **{"settings": settings_of(case), "epochs": 1, "batch": 2, "device": "cpu", "out": tmp_path / "run"},
    )
    code, output = linearno("export", tmp_path / "run", "--format", "onnx", "-o", tmp_path / "model.onnx")
    assert code == 0, output
    assert "checked at three sizes" in output
