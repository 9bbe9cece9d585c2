"""Models in bfloat16, float16 and float64: PyTorch's `model.bfloat16()`, not autocast."""

import pytest
import torch

from linearno import CrossLinearNO, LinearNO, Transolver, stream
from linearno.ops import backend, linear_attention

SMALL = {"width": 16, "depth": 2, "heads": 2, "slices": 6}
GRID = {"stem": "conv", "grid": (5, 7)}
SEGMENTS = torch.tensor([0, 10, 35])
# By relative norms: some eight roundings of each number.
NEAR = {torch.bfloat16: 0.03, torch.float16: 0.004, torch.float64: 1e-5}
MODELS = {
    "linearno": (LinearNO, {}, ()),
    "linearno, grid": (LinearNO, {**GRID, "merge_layers": 2}, ()),
    "linearno, time": (LinearNO, {"time": True}, ("time",)),
    "linearno, packed": (LinearNO, {"time": True}, ("time", "segments")),
    "linearno, distances on a grid": (LinearNO, {"unified": {"ref": 3}, "grid": (5, 7)}, ()),
    "linearno, distances": (LinearNO, {"unified": {"ref": 3, "place": "coords"}}, ()),
    "linearno, both": (LinearNO, {"unified": {"ref": 3, "place": "positions"}}, ("positions",)),
    "linearno, over points": (LinearNO, {"phi": "N", "psi": "M", "temperature": None}, ()),
    "linearno, tied": (LinearNO, {"tied": True, "mix": "attention"}, ()),
    "transolver": (Transolver, {}, ()),
    "transolver, grid": (Transolver, GRID, ()),
    "transolver, packed": (Transolver, {}, ("segments",)),
    "cross-linearno": (CrossLinearNO, {}, ("points",)),
}


def build(kind, settings):
    torch.manual_seed(0)
    model = kind(coords=2, inputs=1, outputs=1, **SMALL, **settings)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3 / weight.shape[1] ** 0.25)
    return model


def question(names):
    torch.manual_seed(1)
    batch = 1 if "segments" in names else 2
    coords, inputs = torch.rand(batch, 35, 2), torch.randn(batch, 35, 1)
    more = {"time": torch.rand(2, 1), "positions": coords, "points": torch.rand(batch, 11, 2)}
    more["segments"] = SEGMENTS
    return (coords, inputs), {name: more[name] for name in names}


def cast(given, kind):
    return given.to(kind) if given.is_floating_point() else given


def solve(model, names, kind):
    """Prediction and gradients."""
    model = model.to(kind)
    asked, more = question(names)
    out = model(
        *(cast(part, kind) for part in asked), **{name: cast(part, kind) for name, part in more.items()}
    )
    weights = list(model.parameters())
    found = torch.autograd.grad(out, weights, torch.ones_like(out), allow_unused=True)
    return out.detach(), [grad for grad in found if grad is not None]


def far(found, true):
    found, true = found.double(), true.double()
    return ((found - true).norm() / true.norm()).item()


@pytest.mark.parametrize("kind", NEAR, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_prediction_and_gradients_are_those_of_the_float32_model_to_rounding(name, kind):
    family, settings, asked = MODELS[name]
    rounded = build(family, settings).to(kind).float()  # both have the weights that `kind` can hold
    true, true_slopes = solve(rounded, asked, torch.float32)
    model = build(family, settings)
    out, slopes = solve(model, asked, kind)
    assert out.dtype == kind
    assert {slope.dtype for slope in slopes} == {kind}
    assert {value.dtype for value in model.state_dict().values()} == {kind}
    assert far(out, true) < NEAR[kind]
    flat, true_flat = (
        torch.cat([slope.double().flatten() for slope in all_]) for all_ in (slopes, true_slopes)
    )
    assert far(flat, true_flat) < 3 * NEAR[kind]
    asked, more = question(asked)
    with torch.no_grad():
        alone = model(
            *(cast(part, kind) for part in asked), **{name: cast(part, kind) for name, part in more.items()}
        )
    assert alone.dtype == kind
    assert far(alone, true) < NEAR[kind]


@pytest.mark.parametrize("kind", NEAR, ids=str)
@pytest.mark.parametrize("family", [LinearNO, Transolver])
def test_encoding_queries_and_streams_are_too(family, kind):
    model = build(family, {}).to(kind).float()
    (coords, inputs), _ = question(())
    with torch.no_grad():
        true = model(coords, inputs)
        model, coords, inputs = model.to(kind), coords.to(kind), inputs.to(kind)
        states = model.encode(coords, inputs)
        found = model.query(coords[:, 3:20], states, inputs[:, 3:20])
    assert found.dtype == kind
    assert far(found, true[:, 3:20]) < NEAR[kind]
    for keep in ("device", "disk", "recompute"):
        streamed = stream(model, coords[0], inputs[0], chunk=11, keep=keep)
        assert streamed.dtype == kind
        assert far(streamed, true[0]) < NEAR[kind]


def test_a_completed_field_is_too():
    model = build(CrossLinearNO, {}).bfloat16()
    (coords, inputs), more = question(("points",))
    with torch.no_grad():
        state = model.encode(coords.bfloat16(), inputs.bfloat16())
        found = model.query(more["points"].bfloat16(), state)
        true = model.float()(coords, inputs, **more)
    assert found.dtype == torch.bfloat16
    assert far(found, true) < NEAR[torch.bfloat16]


def test_kernels_take_weights_in_bf16():
    """On a GPU the attention of a bf16 model runs by kernels, the layers around it in plain PyTorch."""
    pytest.importorskip("triton")
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shapes = (1, 33, 2, 8), (8, 6), (8, 6), (2,), (2,), (6,)
    leaves = [torch.randn(shape, device=device).bfloat16().requires_grad_() for shape in shapes]

    def attend(x, w_query, w_key, scale_query, scale_key, bias, how):
        with backend(how):
            return linear_attention(x, w_query, w_key, scale_query, scale_key, bias_key=bias)

    plain, fused = (attend(*leaves, how) for how in ("plain", "kernel"))
    assert fused.dtype == torch.bfloat16
    assert far(fused, plain) < 0.02
    cotangent = torch.randn_like(plain)
    for ours, theirs in zip(
        *(torch.autograd.grad(out, leaves, cotangent) for out in (fused, plain)), strict=True
    ):
        assert ours.dtype == torch.bfloat16
        assert (ours - theirs).norm() < 0.05 * theirs.norm().clamp(min=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", NEAR, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_computes_what_a_cpu_does(name, kind):
    family, settings, asked = MODELS[name]
    true, _ = solve(build(family, settings).to(kind).float(), asked, torch.float32)
    model = build(family, settings).to(kind).cuda()
    given, more = question(asked)
    more = {name: part if name == "segments" else cast(part, kind).cuda() for name, part in more.items()}
    out = model(*(cast(part, kind).cuda() for part in given), **more)
    out.sum().backward()
    assert far(out.detach().cpu(), true) < NEAR[kind]
    slopes = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert {slope.dtype for slope in slopes} == {kind}
    assert all(slope.isfinite().all() for slope in slopes)
