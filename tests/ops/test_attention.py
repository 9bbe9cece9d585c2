"""Properties of linear attention by gather, merge and scatter."""

from itertools import product

import pytest
import torch
from torch.export import Dim

from linearno.ops import (
    State,
    dense_linear_attention,
    gather,
    linear_attention,
    merge,
    scatter,
    slice_weights,
)
from linearno.ops.chunked import MAX_BLOCK_SCORES

B, N, H, D, M = 2, 133, 3, 5, 7
NORMS = list(product(("M", "N"), ("N", "M", "sum", "phi")))


def random(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def layer():
    """Features, query weight and key weight."""
    return [random(B, N, H, D), random(D, M), random(D, M)]


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request, monkeypatch):
    """All points in one block, or blocks of 64 points."""
    if request.param == "many blocks":
        monkeypatch.setitem(MAX_BLOCK_SCORES, "cpu", 1)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("phi", "psi"), NORMS)
@pytest.mark.usefixtures("blocks")
def test_every_norm_agrees_with_its_dense_twin_in_value_and_gradient(layer, phi, psi, biased):
    leaves = [*layer, torch.rand(H, dtype=torch.float64), torch.rand(H, dtype=torch.float64)]
    options = {"value": random(B, N, H, 4)}
    if biased:
        options |= {"bias_query": random(M), "bias_key": random(M)}
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    norms = {"phi": phi, "psi": psi, "eps": 1e-2 if psi == "sum" else 0.0}
    fast = linear_attention(*leaves, **options, **norms)
    slow = dense_linear_attention(*leaves, **options, **norms)
    torch.testing.assert_close(fast, slow)
    cotangent, leaves = torch.randn_like(fast), [*leaves, *options.values()]
    torch.testing.assert_close(
        torch.autograd.grad(fast, leaves, cotangent), torch.autograd.grad(slow, leaves, cotangent)
    )


@pytest.mark.parametrize(("phi", "psi"), NORMS)
def test_a_mix_agrees_with_its_dense_twin(layer, phi, psi):
    turn = random(D, D)

    def mix(slices):
        return (slices @ turn).tanh()

    fast, slow = (f(*layer, phi=phi, psi=psi, mix=mix) for f in (linear_attention, dense_linear_attention))
    torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize(("phi", "psi"), NORMS)
def test_gradients_are_those_of_finite_differences(phi, psi):
    leaves = [random(1, 5, 2, 3), random(3, 4), random(3, 4)]
    assert torch.autograd.gradcheck(lambda *a: linear_attention(*a, phi=phi, psi=psi), leaves)


def test_the_sum_of_a_state_carries_its_own_gradient():
    def log_weight(x, w):
        state = gather(x, w)
        return state.max + state.sum.log()

    assert torch.autograd.gradcheck(log_weight, [random(1, 5, 2, 3), random(3, 4)])


def test_rows_of_the_kernel_sum_to_one_for_phi_over_slices_and_psi_over_points(layer):
    phi, psi = slice_weights(*layer)
    torch.testing.assert_close((phi @ psi.mT).sum(dim=-1), torch.ones(B, H, N, dtype=torch.float64))
    constant = torch.full((B, N, H, 1), 3.5, dtype=torch.float64)
    torch.testing.assert_close(linear_attention(*layer, value=constant), constant)


@pytest.mark.parametrize(("phi", "psi"), NORMS)
def test_permuting_the_points_permutes_the_output(layer, phi, psi):
    x, *weights = layer
    order = torch.randperm(N)
    permuted = linear_attention(x[:, order], *weights, phi=phi, psi=psi)
    torch.testing.assert_close(permuted, linear_attention(x, *weights, phi=phi, psi=psi)[:, order])


@pytest.mark.parametrize("psi", ["N", "sum", "phi"])
def test_repeating_every_point_changes_nothing(layer, psi):
    x, *weights = layer
    repeated = linear_attention(x.repeat(1, 3, 1, 1), *weights, psi=psi)
    torch.testing.assert_close(repeated[:, :N], linear_attention(x, *weights, psi=psi))


@pytest.mark.parametrize("cuts", [[1, 132], [40, 93], [0, 133], [17, 50, 66], [1] * 133])
@pytest.mark.parametrize("score", ["linear", "log_softmax", "softmax"])
def test_merging_the_states_of_any_split_equals_the_whole(layer, cuts, score):
    x, _, w_key = layer
    whole = gather(x, w_key, score=score)
    parts = merge(*(gather(part, w_key, score=score) for part in x.split(cuts, dim=1)))
    torch.testing.assert_close(parts.value, whole.value)
    torch.testing.assert_close(parts.max + parts.sum.log(), whole.max + whole.sum.log())
    cotangent = torch.randn_like(whole.value)
    torch.testing.assert_close(
        torch.autograd.grad(parts.value, [x, w_key], cotangent),
        torch.autograd.grad(whole.value, [x, w_key], cotangent),
    )


def test_merging_is_exact_between_wildly_different_magnitudes(layer):
    x, _, w_key = (leaf.detach() for leaf in layer)
    x = x * torch.logspace(-3, 3, N, dtype=x.dtype)[:, None, None]
    whole = dense_linear_attention(x, w_key, w_key, phi="N")
    states = merge(*(gather(part, w_key) for part in x.split(10, dim=1)))
    normaliser = gather(x, w_key)
    torch.testing.assert_close(scatter(x, w_key, None, states, normaliser=normaliser), whole)


@pytest.mark.parametrize("psi", ["N", "sum", "phi"])
def test_scores_of_ten_thousand_neither_overflow_nor_lose_their_gradient(psi):
    x = torch.randn(B, N, H, D)
    x = (1e4 * x / x.abs().max()).requires_grad_()
    w_query, w_key = torch.eye(D, M), torch.eye(D, M).flip(0)
    out = linear_attention(x, w_query, w_key, psi=psi, eps=1e-5 if psi == "sum" else 0.0)
    exact = dense_linear_attention(
        x.double(), w_query.double(), w_key.double(), psi=psi, eps=1e-5 if psi == "sum" else 0.0
    )
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-1)
    out.sum().backward()
    assert x.grad.isfinite().all()
    halves = merge(*(gather(half, w_key) for half in x.split(70, dim=1)))
    assert all(part.isfinite().all() for part in halves)


def test_an_empty_part_adds_nothing(layer):
    x, _, w_key = layer
    empty = gather(x[:, :0], w_key)
    whole = gather(x, w_key)
    torch.testing.assert_close(merge(empty, whole), whole)
    assert torch.equal(merge(empty, empty).value, torch.zeros(B, H, M, D, dtype=torch.float64))


def test_a_state_can_be_scattered_to_other_points(layer):
    x, w_query, w_key = layer
    state = gather(x, w_key)
    some = torch.tensor([5, 77, 130])
    torch.testing.assert_close(scatter(x[:, some], w_query, None, state), linear_attention(*layer)[:, some])


def test_half_precision_is_normalised_in_float32(layer):
    x, *weights = (leaf.detach().bfloat16() for leaf in layer)
    out = linear_attention(x, *weights)
    assert out.dtype == torch.bfloat16
    state = gather(x, weights[1])
    assert isinstance(state, State)
    assert state.value.dtype == state.sum.dtype == torch.float32
    exact = dense_linear_attention(x.double(), *(w.double() for w in weights))
    torch.testing.assert_close(out.double(), exact, rtol=0.05, atol=0.05)


def test_a_wrong_shape_is_refused_by_the_annotations(layer):
    x, _, w_key = layer
    with pytest.raises(Exception, match="weight"):
        gather(x, w_key[0])


class EveryNorm(torch.nn.Module):
    def forward(self, x, value, w_query, w_key, scale, bias):
        return [
            linear_attention(
                x, w_query, w_key, scale, scale, value=value, bias_query=bias, bias_key=bias, phi=phi, psi=psi
            )
            for phi, psi in NORMS
        ]


def test_an_exported_graph_serves_any_number_of_points_with_every_norm():
    """Without blocks, which it could not count."""
    weights = [random(D, M), random(D, M), torch.rand(H, dtype=torch.float64), random(M)]
    asked = random(B, N, H, D), random(B, N, H, 4), *weights
    free = {0: Dim("batch", min=1), 1: Dim("points", min=1)}
    program = torch.export.export(EveryNorm(), asked, dynamic_shapes=[free, free, *[None] * 4]).module()
    for batch, points in ((1, 1), (3, 2), (2, 4 * N + 1)):
        x, value = random(batch, points, H, D), random(batch, points, H, 4)
        told, (w_query, w_key, scale, bias) = program(x, value, *weights), weights
        for out, (phi, psi) in zip(told, NORMS, strict=True):
            options = {"value": value, "bias_query": bias, "bias_key": bias, "phi": phi, "psi": psi}
            slow = dense_linear_attention(x, w_query, w_key, scale, scale, **options)
            torch.testing.assert_close(out, slow)
