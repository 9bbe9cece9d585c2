"""Whole models with fused kernels are the models without, in value and gradient; compilers accept them."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from linearno import CrossLinearNO, LinearNO, Transolver
from linearno.nn import transformer as skeleton
from linearno.ops import WeightCache, backend, convolve
from linearno.ops.side_streams import overlap_weight_gradients

pytestmark = pytest.mark.slow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOW = pytest.mark.skipif(DEVICE.type == "cpu", reason="takes minutes in Triton's interpreter")
KINDS = {
    "LinearNO on a grid": (LinearNO, {"stem": "conv", "grid": (6, 5), "merge_layers": 2}),
    "LinearNO on points": (LinearNO, {"stem": "linear"}),
    "Transolver on a grid": (Transolver, {"stem": "conv", "grid": (6, 5)}),
    "Transolver on points": (Transolver, {"stem": "linear"}),
    "Cross-LinearNO": (CrossLinearNO, {"mlp_ratio": 3}),
}


def build(kind):
    torch.manual_seed(0)
    model, settings = KINDS[kind]
    made = model(coords=2, inputs=1, outputs=1, width=16, depth=2, heads=2, slices=5, **settings)
    for weight in made.parameters():
        if weight.dim() > 1:  # as drawn they are so small that some gradients drown in rounding
            torch.nn.init.normal_(weight, std=0.3)
        if weight.dim() == 4:  # as training keeps them
            weight.data = weight.data.to(memory_format=torch.channels_last)
    return made.to(DEVICE), torch.rand(2, 30, 2, device=DEVICE), torch.randn(2, 30, 1, device=DEVICE)


def answer(model, asked, how, **more):
    model.zero_grad()
    with backend(how):
        out = model(*asked, **more)
        out.square().sum().backward()
    return out.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def require_same(model, asked):
    """The answer, which is that without kernels as are all gradients."""
    plain, fused = (answer(model, asked, how) for how in ("plain", "kernel"))
    torch.testing.assert_close(fused[0], plain[0], rtol=1e-4, atol=1e-5)
    assert fused[1].keys() == plain[1].keys()
    for name, grad in plain[1].items():
        torch.testing.assert_close(fused[1][name], grad, rtol=1e-3, atol=2e-4 * grad.abs().max().item())
    return plain[0]


@pytest.mark.parametrize(
    ("kind", "taps"), [(kind, False) for kind in KINDS] + [(kind, True) for kind in KINDS if "grid" in kind]
)
def test_a_model_answers_and_learns_the_same_with_kernels(monkeypatch, kind, taps):
    """Gradients lie in memory as their parameters do: autograd copies any other at once, which of one made on
    a second stream is too early."""
    model, *asked = build(kind)
    if taps:  # as wide convolutions on CUDA without tf32
        monkeypatch.setattr(convolve, "use_tap_products", lambda x, weight: True)
    strides = {}
    for name, weight in model.named_parameters():
        weight.register_hook(lambda grad, name=name: strides.update({name: grad.stride()}))
    found = require_same(model, asked)
    assert strides == {name: weight.stride() for name, weight in model.named_parameters() if name in strides}
    assert len(strides) > 20
    with torch.no_grad(), backend("kernel"):
        torch.testing.assert_close(model(*asked), found, rtol=1e-4, atol=1e-5)


def test_a_stream_that_begins_in_bf16_is_that_which_add_norm_would_round_to_it(monkeypatch):
    model, *asked = build("LinearNO on points")
    types, real = [], skeleton.initial_stream

    def initial_stream(h, data):
        begun = real(h, data)
        types.append(begun.dtype)
        return begun

    monkeypatch.setattr(skeleton, "initial_stream", initial_stream)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        out, gradients = answer(model, asked, "kernel")
        with torch.no_grad():
            model(*asked)
        monkeypatch.setattr(skeleton, "initial_stream", lambda h, data: h.to(data.dtype))
        rounded, others = answer(model, asked, "kernel")
    assert types == [torch.bfloat16, torch.float32]  # without gradients nothing rounds it
    assert torch.equal(out, rounded)
    for name, gradient in gradients.items():
        size = others[name].abs().max().item()  # Triton's interpreter cuts to bf16 where PyTorch rounds
        torch.testing.assert_close(gradient, others[name], rtol=0, atol=2**-7 * size)


@pytest.mark.parametrize("kind", ["Transolver on a grid", "Transolver on points"])
def test_a_slice_that_no_point_belongs_to_does_no_harm(kind):
    model, *asked = build(kind)
    for block in model.blocks:
        block.attention.query.bias.data[0] = -1e3
    require_same(model, asked)


@pytest.fixture
def unwritten_is_nan():
    """Memory that nobody wrote to holds NaN."""
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = before
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kind", ["LinearNO on points", "Transolver on points"])
def test_no_kernel_reads_uninitialised_memory(unwritten_is_nan, kind):
    model, *asked = build(kind)
    cache = WeightCache(model.parameters(), torch.bfloat16)
    with torch.autocast(DEVICE.type, torch.bfloat16), cache.activate():
        out, gradients = answer(model, asked, "kernel")
    assert all(found.isfinite().all() for found in (out, *gradients.values()))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_made_on_a_second_stream_are_the_same_to_the_bit(kind):
    model, *asked = build(kind)
    in_line = answer(model, asked, "kernel")[1]
    with overlap_weight_gradients(DEVICE):
        answered = answer(model, asked, "kernel")[1]
    torch.cuda.synchronize()
    beside = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert beside.keys() == answered.keys() == in_line.keys()
    assert all(torch.equal(beside[name], grad) for name, grad in in_line.items())


@pytest.mark.parametrize("kind", ["LinearNO on points", "Transolver on points"])
def test_a_mesh_encoded_with_kernels_can_be_queried(kind):
    model, coords, inputs = build(kind)
    with torch.no_grad(), backend("kernel"):
        states = model.encode(coords, inputs)
        torch.testing.assert_close(
            model.query(coords[:, :7], states, inputs[:, :7]),
            model(coords, inputs)[:, :7],
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.parametrize("slices", [48, pytest.param(256, marks=SLOW)])
def test_a_completer_with_kernels_is_the_one_in_float64(slices):
    """Heads of 12 numbers and 48 slices as in the published code, 256 as in the paper."""
    torch.manual_seed(0)
    model = CrossLinearNO(coords=2, inputs=1, outputs=1, width=24, depth=1, heads=2, slices=slices)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    exact = copy.deepcopy(model).double().to(DEVICE)
    model, seen = model.to(DEVICE), [torch.rand(1, 19, c, device=DEVICE) for c in (2, 1)]
    points = torch.rand(1, 37, 2, device=DEVICE)
    fused = answer(model, seen, "kernel", points=points)
    plain = answer(exact, [part.double() for part in seen], "plain", points=points.double())
    torch.testing.assert_close(fused[0].double(), plain[0], rtol=1e-4, atol=1e-5)
    assert fused[1].keys() == plain[1].keys()
    for name, grad in plain[1].items():
        found = fused[1][name].double()
        torch.testing.assert_close(found, grad, rtol=1e-3, atol=2e-4 * grad.abs().max().item())
    with torch.no_grad(), backend("kernel"):
        asked = model.query(points[:, :7], model.encode(*seen))
    torch.testing.assert_close(asked.double(), plain[0][:, :7], rtol=1e-4, atol=1e-5)


def compiled_equals_plain():
    model, *asked = build("LinearNO on points")
    plain = answer(model, asked, "plain")
    fused = answer(torch.compile(model, backend="aot_eager", fullgraph=True), asked, "kernel")
    torch.testing.assert_close(fused[0], plain[0], rtol=1e-4, atol=1e-5)
    for name, grad in plain[1].items():
        found = fused[1][f"_orig_mod.{name}"]
        torch.testing.assert_close(found, grad, rtol=1e-3, atol=2e-4 * grad.abs().max().item())


def test_the_op_can_be_compiled_into_one_graph():
    """In a process of its own, where no type checks stand in the compiler's way."""
    script = "from test_fused_models import compiled_equals_plain; compiled_equals_plain()"
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent, check=True, timeout=300)


def test_the_op_can_be_exported():
    model, *asked = build("LinearNO on points")
    with backend("kernel"), torch.no_grad():
        exported = torch.export.export(model.eval(), tuple(asked))
        assert "linearno.gather" in str(exported.graph)
        torch.testing.assert_close(exported.module()(*asked), model(*asked), rtol=1e-4, atol=1e-5)
