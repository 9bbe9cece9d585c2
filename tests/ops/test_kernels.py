"""The fused kernels against float64, with errors as of textbook arithmetic in the same precision.

On a machine without CUDA they run in Triton's interpreter, on tensors in its memory.
"""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from linearno.core.errors import UserError
from linearno.ops import (
    State,
    backend,
    convolve,
    gather,
    gather_with_passthrough,
    layers,
    linear_attention,
    merge,
    scatter,
    self_attention,
    self_attention_of_means,
)
from linearno.ops.backend import chosen
from tests.ops.textbook import Textbook

pytestmark = pytest.mark.slow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = torch.bfloat16
# How much larger than in textbook arithmetic an error may be: fused formulas round at other places. Triton's
# interpreter cuts to bf16 where a GPU rounds.
WORSE = {torch.float32: 2.0, HALF: 1.5 if torch.cuda.is_available() else 2.0}
# The error of a few numbers is one sample of a distribution whose width is estimated from a few others: eight
# widths leave one in 10⁴ beyond (Student's t, 8 degrees of freedom).
MAX_SERIAL_PLATES, WORSE_OF_FEW = 8, 8.0
ORDERS = 4  # in which textbook sums are taken

# B, N, H, D, M
SHAPES = [
    (1, 1, 2, 8, 4),
    (2, 133, 2, 12, 7),
    (1, 131, 1, 16, 64),
    (1, 64, 1, 24, 33),
    (1, 33, 1, 16, 256),
    (1, 97, 2, 32, 32),
    (1, 20, 1, 64, 129),
    (1, 17, 24, 8, 9),
]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def draw(*shape, scale=1.0, kind=torch.float32):
    return (scale * torch.randn(shape)).to(DEVICE, kind)


def run(work, leaves, cotangent, *, how, kind=None):
    """Value and gradients of `work(*leaves)` in one way of computing it."""
    leaves = [leaf.detach().to(kind or leaf.dtype).requires_grad_() for leaf in leaves]
    with backend(how):
        out = work(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, cotangent.to(out.dtype))]


def error(found, true):
    """Relative, where numbers are of order one or larger: some gradients are zero but for rounding."""
    return ((found.double() - true).norm() / true.norm().clamp(min=true.numel() ** 0.5)).item()


def errors(found, true):
    return [error(ours, right) for ours, right in zip(found, true, strict=True)]


def agrees(work, leaves, *, floor, draws=2):
    """Value and gradients are at most WORSE times as far from float64 as by textbook arithmetic; on a GPU two
    runs agree to the bit.

    Textbook arithmetic has rounding errors that follow from the type and the sizes alone: those of PyTorch's
    own products depend on the host. Errors are pooled over a few inputs. Below `floor`, which is the rounding
    of the type, they are luck.
    """
    pooled, expected = [], []
    for _ in range(draws):
        leaves = [leaf + 0.1 * torch.rand_like(leaf) for leaf in leaves]
        with backend("plain"), torch.no_grad():
            cotangent = torch.randn_like(work(*leaves))
        true = run(work, leaves, cotangent, how="plain", kind=torch.float64)
        fused = run(work, leaves, cotangent, how="kernel")
        pooled.append(errors(fused, true))
        for order in range(ORDERS):
            with Textbook(order):
                textbook = run(work, [leaf.cpu() for leaf in leaves], cotangent.cpu(), how="plain")
            assert [ours.dtype for ours in fused] == [theirs.dtype for theirs in textbook]
            expected.append(errors([theirs.to(DEVICE) for theirs in textbook], true))
    if DEVICE.type == "cuda":  # Triton's interpreter knows one order only
        again = run(work, leaves, cotangent, how="kernel")
        assert all(torch.equal(ours, twice) for ours, twice in zip(fused, again, strict=True))  # to the bit
    ours, theirs = (torch.tensor(each).square().mean(dim=0).sqrt() for each in (pooled, expected))
    few = torch.tensor([right.numel() <= MAX_SERIAL_PLATES for right in true])
    bound = torch.where(few, WORSE_OF_FEW, WORSE[leaves[0].dtype]) * theirs.clamp(min=floor)
    assert (ours <= bound).all(), f"ours {ours.tolist()}, at most {bound.tolist()}"


def attention(psi, tied):
    def work(x, w_query, w_key, scale_query, scale_key, project):
        w_key, scale_key = (w_query, scale_query) if tied else (w_key, scale_key)
        _, state = gather_with_passthrough(
            x,
            w_key,
            scale_key,
            project=project,
            score={"N": "linear", "sum": "log_softmax", "phi": "softmax"}[psi],
        )
        return scatter(x, w_query, scale_query, state)

    return work


@pytest.mark.parametrize("kind", [torch.float32, HALF])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_is_as_near_to_float64_as_textbook_arithmetic(shape, kind):
    batch, points, heads, width, slices = shape
    leaves = [
        draw(batch, points, heads, width, kind=kind),
        draw(width, slices),
        draw(width, slices),
        torch.rand(heads, device=DEVICE) + 0.5,
        torch.rand(heads, device=DEVICE) + 0.5,
        draw(width, width),
    ]
    floor = 2**-7 if kind == HALF else 2**-21
    draws = 8 if DEVICE.type == "cuda" else 1 if max(slices, 4 * heads) > 64 else 2
    agrees(attention("N", tied=False), leaves, floor=floor, draws=draws)


@pytest.mark.parametrize("psi", ["N", "sum", "phi"])
def test_every_norm_and_tied_projections_are_too(psi):
    leaves = [draw(2, 101, 2, 16), draw(16, 9), draw(16, 9)]
    leaves += [torch.rand(2, device=DEVICE) + 0.5, torch.rand(2, device=DEVICE) + 0.5, draw(16, 5)]
    used = [leaves[i] for i in (0, 1, 3, 5)]

    def tied(x, w, scale, project):
        return attention(psi, tied=True)(x, w, w, scale, scale, project)

    agrees(tied, used, floor=2**-21)


@pytest.mark.parametrize("psi", ["N", "sum"])
def test_values_of_their_own_and_biases_are_too(psi):
    leaves = [draw(1, 90, 2, 12), draw(12, 7), draw(1, 90, 2, 9), draw(7), draw(7)]

    def work(x, w, value, bias_query, bias_key):
        return linear_attention(
            x, w, w, value=value, bias_query=bias_query, bias_key=bias_key, psi=psi, eps=1e-3
        )

    agrees(work, leaves, floor=2**-21)


@pytest.mark.parametrize("view", ["columns", "rows", "expanded"])
def test_weights_that_are_parts_of_larger_ones_and_expanded_scales_are_read_and_differentiated(view):
    """Kernels get addresses: they must neither read nor write by the strides of another tensor."""

    def work(x, weight, scale, bias, project):
        weight = {
            "columns": weight[:, ::2],
            "rows": weight[3:11, :7],
            "expanded": weight[:1, :7].expand(8, 7),
        }[view]
        if len(weight) != 8:
            weight = weight[:8]
        state = gather(x, weight, scale.expand(2), bias=bias[::3], project=project[::2, 1:6])
        return scatter(x, weight, scale.expand(2), state, bias=bias[::3])

    leaves = [draw(1, 33, 2, 8), draw(11, 14), draw(1), draw(21), draw(16, 9)]
    cotangent = draw(1, 33, 2, 5)
    plain, fused = (run(work, leaves, cotangent, how=how) for how in ("plain", "kernel"))
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)


def test_scores_of_ten_thousand_neither_overflow_nor_lose_the_maximum():
    x, w = draw(1, 150, 2, 16), draw(16, 20, scale=1e4)
    for score in ("linear", "log_softmax"):
        with backend("kernel"):
            state = gather(x, w, score=score)
            out = scatter(x, w, None, state)
        true = gather(x.double(), w.double(), score=score)
        assert state.value.isfinite().all()
        assert out.isfinite().all()
        torch.testing.assert_close(state.max.double(), true.max, rtol=1e-5, atol=1e-1)


def test_a_temperature_at_its_clamp_gets_no_gradient():
    t = torch.tensor([0.005, 0.01, 0.5, 1.0, 3.0], device=DEVICE)
    found = [
        run(lambda t: layers.inverse(t, 0.01, 1.0), [t], torch.ones(5, device=DEVICE), how=how)
        for how in ("plain", "kernel")
    ]
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain)
    assert found[1][1].tolist()[0] == found[1][1].tolist()[-1] == 0


def test_whoever_reads_the_points_after_a_gather_adds_to_one_gradient():
    x, w = draw(1, 80, 2, 16), draw(16, 6)

    def work(x, w):
        x, state = gather_with_passthrough(x, w)
        return scatter(x, w, None, state) + x

    agrees(work, [x, w], floor=2**-21)


def test_a_state_with_a_gradient_of_its_sum_is_differentiated_like_the_plain_one():
    def work(x, w):
        state = gather(x, w)
        return (state.max + state.sum.log()).unsqueeze(-1) * state.value

    agrees(work, [draw(1, 70, 2, 8), draw(8, 5)], floor=2**-21)


def test_states_of_parts_merge_whichever_way_they_were_gathered():
    x, w = draw(2, 120, 2, 16), draw(16, 6)
    with backend("kernel"):
        parts = merge(gather(x[:, :50], w), gather(x[:, 50:], w))
    # scores of up to 16 have weights that are off by 16 roundings: 1e-6 of means of numbers up to four
    torch.testing.assert_close(parts.value, gather(x, w).value, rtol=0, atol=4e-6)


@pytest.mark.parametrize("kind", [torch.float32, HALF])
@pytest.mark.parametrize(
    ("rows", "width", "hidden"), [(6000 if DEVICE.type == "cuda" else 90, 20, 70), (90, 140, 200)]
)  # the first: more tiles than programs; the second: tiles of wide layers
def test_mlp_and_linear_layers_are_as_near_to_float64_as_textbook_arithmetic(kind, rows, width, hidden):
    x = draw(3, rows, width, kind=kind)
    w1, w2 = draw(hidden, width, scale=width**-0.5), draw(width, hidden, scale=hidden**-0.5)
    b1, b2 = draw(hidden), draw(width)
    floor = 2**-7 if kind == HALF else 2**-21

    def in_the_type_of_x(layer):
        def work(x, *weights):
            if x.dtype == HALF and chosen() == "plain":  # the kernels cast for themselves
                weights = [weight.to(HALF) for weight in weights]
            return layer(x, *weights)

        return work

    for layer, weights in ((layers.mlp, [w1, b1, w2, b2]), (layers.linear, [w1, b1])):
        agrees(in_the_type_of_x(layer), [x, *weights], floor=floor)


@pytest.mark.parametrize("outputs", [24, 140])
def test_coordinates_enter_an_mlp_unrounded(outputs):
    """Of places between 2 and 2.05 bf16 leaves four, tf32 two dozen: the hidden layer sees them 40 times as
    far apart."""
    x = 2 + 0.05 * torch.rand(60, 3, device=DEVICE)
    w1 = torch.rand(40, 3, device=DEVICE)
    w1, b1 = 40 * w1 / w1.sum(dim=1, keepdim=True), torch.full((40,), -80.0, device=DEVICE)
    w2, b2 = draw(outputs, 40, scale=0.2), draw(outputs)
    leaves = [leaf.requires_grad_() for leaf in (w1, b1, w2, b2)]
    found = []
    for way in ("kernel", "plain"):
        with backend(way), torch.autocast(DEVICE.type, HALF, enabled=way == "kernel"):
            out = layers.mlp(x, *leaves, exact=True)
        found.append([out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)])
    for ours, right in zip(*found, strict=True):
        torch.testing.assert_close(ours.float(), right, rtol=2**-5, atol=0.05 * right.abs().max().item())


def test_the_stream_kept_as_two_halves_is_the_stream():
    """16 bits of mantissa where bf16 has 8, and the norm's gradients those of the plain one."""
    h, more = draw(50, 24), draw(50, 24, kind=HALF)
    offset, gain, shift = draw(24), draw(24), draw(24)
    leaves = [leaf.requires_grad_() for leaf in (h, more, offset, gain, shift)]
    with backend("kernel"), torch.autocast(DEVICE.type, HALF):
        stream, normed = layers.add_norm(layers.Residual(h, None, more, offset), gain, shift, 1e-5)
    total = (h + more + offset).detach()
    assert stream.h.dtype == HALF
    torch.testing.assert_close(stream.total(), total, rtol=2**-15, atol=1e-6)
    torch.testing.assert_close(normed.float(), F.layer_norm(total, (24,), gain, shift), rtol=2**-6, atol=1e-2)
    d_h, d_normed = draw(50, 24, kind=HALF), draw(50, 24, kind=HALF)
    found = torch.autograd.grad([stream.h, normed], leaves, [d_h, d_normed])
    total = h + more + offset
    true = torch.autograd.grad(
        [total, F.layer_norm(total, (24,), gain, shift)], leaves, [d_h.float(), d_normed.float()]
    )
    for ours, right in zip(found, true, strict=True):
        torch.testing.assert_close(ours.float(), right.float(), rtol=2**-6, atol=5e-2)


def test_a_split_stream_hides_nothing_that_is_not_finite_and_keeps_small_numbers():
    broken, small = [torch.nan, torch.inf, -torch.inf], [0.0, -0.0, 1e-40, -1.99999, 2**-126, 3e38]
    h, gain = torch.tensor(broken + small, device=DEVICE)[:, None].repeat(1, 8), torch.ones(8, device=DEVICE)
    with backend("kernel"), torch.autocast(DEVICE.type, HALF):
        found = layers.add_norm(layers.Residual(h, None, torch.zeros_like(h)), gain, gain, 1e-5)[0].total()
    assert not found[:3].isfinite().any()
    torch.testing.assert_close(found[3:], h[3:], rtol=2**-15, atol=1e-38)


@pytest.mark.parametrize("hidden", [0, 40, 150])
@pytest.mark.parametrize("along", [True, False])
def test_a_branch_that_ends_in_its_norm_is_as_near_to_float64_as_one_before_it(hidden, along):
    """One linear map of 20 numbers to 24, or an MLP."""
    h, x, offset, gain, shift = draw(3, 17, 24, scale=16), draw(3, 17, 20, kind=HALF), *draw(3, 24)
    sizes = [(hidden, 20), (hidden,), (24, hidden)] if hidden else [(24, 20)]
    weights = [draw(*size, scale=size[-1] ** -0.5) for size in sizes]
    leaves = [leaf.requires_grad_() for leaf in (h, x, offset, gain, shift, *weights)]
    slopes = [draw(3, 17, 24, kind=HALF), draw(3, 17, 24, kind=HALF)]

    def answers(h, x, offset, gain, shift, *weights, way):
        branch = layers.PendingBranch(x, weights[-1], tuple(weights[:-1]) or None)
        if way == "exact":
            return h + branch.compute() + offset, gain, shift
        stream = layers.add_norm(layers.Residual(h), torch.ones_like(gain), torch.zeros_like(shift), 1e-5)[0]
        more = branch if way == "one" else branch.compute()
        stream, normed = layers.add_norm(stream._replace(pending=more, offset=offset), gain, shift, 1e-5)
        assert ("FusedBranch" in type(normed.grad_fn).__name__) == (way == "one")
        return stream.h, normed, stream.total().detach()

    found = {}
    for way in ("one", "two"):
        with backend("kernel"), torch.autocast(DEVICE.type, HALF):
            sums, normed, closed = answers(*leaves, way=way)
        outs, given = ([sums, normed], slopes) if along else ([normed], slopes[1:])
        found[way] = [closed, normed, *torch.autograd.grad(outs, leaves, given)]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    with backend("plain"):
        total, gain64, shift64 = answers(*exact, way="exact")
    normed = F.layer_norm(total, (24,), gain64, shift64)
    outs, given = ([total, normed], slopes) if along else ([normed], slopes[1:])
    true = [total, normed, *torch.autograd.grad(outs, exact, [slope.double() for slope in given])]
    assert error(found["one"][0], true[0]) < 2**-11  # both halves of the stream
    for ours, theirs, right in zip(found["one"], found["two"], true, strict=True):
        assert ours.dtype == theirs.dtype
        assert error(ours, right) <= WORSE[HALF] * max(error(theirs, right), 2**-8)


def test_the_head_of_a_stream_agrees_with_the_plain_one():
    leaves = [draw(3, 21, 24), draw(3, 21, 24), *(draw(24) for _ in range(3)), draw(1, 24), draw(1)]

    def head(h, more, offset, gain, shift, weight, bias):
        return layers.norm_linear(layers.Residual(h, None, more, offset), gain, shift, 1e-5, weight, bias)

    agrees(head, leaves, floor=2**-20)


def test_mixing_slices_and_damping_their_sum_agree_with_the_plain_ones():
    slices, weights = draw(2, 3, 20, 12), [draw(12, 12, scale=0.3) for _ in range(3)]
    agrees(self_attention, [slices, *weights], floor=2**-20)
    top, total = draw(2, 3, 20), torch.rand(2, 3, 20, device=DEVICE) + 0.5

    def damp(value, total, *maps):
        return self_attention_of_means(State(top.to(value), total, value), "sum", 0.3, *maps)

    agrees(damp, [slices, total, *weights], floor=2**-20)
    top[:, :, 5], top[:, :, 7] = -100, -1e4  # as good as no point belongs to these
    agrees(damp, [slices, total, *weights], floor=2**-20)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("grid", [(5, 6), (3, 2, 5), (30, 1)])
def test_a_convolution_on_a_grid_agrees_with_the_plain_one(monkeypatch, grid, exact):
    if exact:  # as of wide ones on CUDA without tf32
        monkeypatch.setattr(convolve, "by_taps", lambda x, weight: True)
    x, weight, bias = draw(2, 30, 8), draw(72, 8, *(3 for _ in grid), scale=0.2), draw(72)
    agrees(lambda x, w, b: layers.grid_conv(x, w, b, grid), [x, weight, bias], floor=2**-20)
    last = weight.movedim(1, -1).contiguous().movedim(-1, 1)  # as training keeps them
    agrees(lambda x, w, b: layers.grid_conv(x, w, b, grid), [x, last, bias], floor=2**-20)


def test_what_a_kernel_cannot_do_is_said_or_done_plainly(caplog):
    x, w = draw(1, 30, 2, 80), draw(80, 6)
    with backend("kernel"), pytest.raises(UserError, match="head width 64, not 6 and 80"):
        gather(x, w)
    with backend("kernel"), pytest.raises(UserError, match="float64"):
        gather(x.double(), w.double())


def test_the_environment_chooses_where_nobody_else_does(monkeypatch):
    monkeypatch.setenv("LINEARNO_BACKEND", "plain")
    assert chosen() == "plain"
    with backend("kernel"):
        assert chosen() == "kernel"
    monkeypatch.setenv("LINEARNO_BACKEND", "plane")
    with pytest.raises(UserError, match="did you mean 'plain'"):
        chosen()


def test_a_compiler_takes_the_choice_for_a_constant():
    marked = vars(torch.compiler.assume_constant_result(lambda: None))
    assert marked
    assert marked.items() <= vars(chosen).items()


def test_the_library_is_imported_without_the_compiler():
    code = "import linearno, sys; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
