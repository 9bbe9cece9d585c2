"""Gather and scatter of a ragged batch agree with those of each mesh alone."""

import pytest
import torch

from linearno.core.errors import UserError
from linearno.ops import State, backend, gather, linear_attention, scatter
from linearno.ops.ragged import expand_per_segment, offsets_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = [7, 1, 150, 23]
SEGMENTS = offsets_of(SIZES)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def leaves(kind, device="cpu"):
    """x, value, query and key weights, their biases, two scales: 2 heads of width 6, 5 slices."""
    shapes = [(1, sum(SIZES), 2, 6), (1, sum(SIZES), 2, 4), (6, 5), (6, 5), (5,), (5,), (2,), (2,)]
    return [torch.randn(shape, dtype=kind, device=device).requires_grad_() for shape in shapes]


def attend(x, value, w_query, w_key, bias_query, bias_key, scale_query, scale_key, **settings):
    scales = scale_query.exp(), scale_key.exp()
    biases = {"bias_query": bias_query, "bias_key": bias_key}
    return linear_attention(x, w_query, w_key, *scales, value=value, **biases, **settings)


def one_by_one(x, value, *others, **settings):
    pairs = zip(x.split(SIZES, 1), value.split(SIZES, 1), strict=True)
    return torch.cat([attend(*pair, *others, **settings) for pair in pairs], dim=1)


def with_gradients(function, tensors, **settings):
    out = function(*tensors, **settings)
    cotangent = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view(out.shape)
    return [out, *torch.autograd.grad(out, tensors, cotangent)]


@pytest.mark.parametrize("psi", ["N", "M", "sum", "phi"])
@pytest.mark.parametrize("phi", ["M", "N"])
def test_packed_attention_agrees_with_that_of_each_mesh_in_value_and_gradient(phi, psi):
    tensors, settings = leaves(torch.float64), {"phi": phi, "psi": psi, "eps": 1e-3, "mix": torch.tanh}
    packed = with_gradients(attend, tensors, segments=SEGMENTS, **settings)
    torch.testing.assert_close(packed, with_gradients(one_by_one, tensors, **settings))


def test_offsets_may_be_a_tuple():
    tensors = leaves(torch.float64)
    assert torch.equal(
        attend(*tensors, segments=tuple(SEGMENTS.tolist())), attend(*tensors, segments=SEGMENTS)
    )


@pytest.mark.parametrize("psi", ["N", "sum"])
def test_packed_kernels_agree_with_float64(psi):
    tensors = leaves(torch.float32, DEVICE)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    with backend("kernel"):
        packed = with_gradients(attend, tensors, segments=SEGMENTS, psi=psi)
    for found, true in zip(packed, with_gradients(one_by_one, exact, psi=psi), strict=True):
        torch.testing.assert_close(
            found.double(), true, rtol=1e-3, atol=1e-5 * true.abs().max().item() + 1e-4
        )


def test_a_state_has_an_entry_for_each_mesh():
    x, w = torch.randn(1, sum(SIZES), 2, 6), torch.randn(6, 5)
    state = gather(x, w, segments=SEGMENTS)
    assert [tuple(part.shape) for part in state] == [(4, 2, 5), (4, 2, 5), (4, 2, 5, 6)]
    for i, part in enumerate(x.split(SIZES, 1)):
        for found, own in zip(state, gather(part, w), strict=True):
            assert torch.equal(found[i : i + 1], own)


def test_a_mesh_of_one_point_gets_that_point_back():
    x, w = torch.randn(1, sum(SIZES), 2, 6), torch.randn(6, 5)
    out = linear_attention(x, w, w, segments=SEGMENTS)
    torch.testing.assert_close(out[:, 7], x[:, 7])


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 7, 7, 181], "segment 1 has 0 points"),
        ([0, 9, 7, 181], "segment 1 has -2 points"),
        ([0, 7, 180], "got 0 to 180"),
        ([1, 181], "got 1 to 181"),
        ([], "got none"),
    ],
)
def test_offsets_with_an_empty_mesh_or_missing_points_are_refused(offsets, message):
    x, w = torch.randn(1, sum(SIZES), 2, 6), torch.randn(6, 5)
    with pytest.raises(UserError, match=message):
        gather(x, w, segments=torch.tensor(offsets, dtype=torch.int64))


def test_states_of_the_wrong_number_of_meshes_are_refused():
    x, w = torch.randn(1, sum(SIZES), 2, 6), torch.randn(6, 5)
    some = State(*(part[:3] for part in gather(x, w, segments=SEGMENTS)))
    with pytest.raises(UserError, match="expected states of 4 meshes, got states of 3"):
        scatter(x, w, None, some, segments=SEGMENTS)
    with pytest.raises(UserError, match="each of 4 segments, got 3"):
        expand_per_segment(torch.zeros(3, 1, 2), SEGMENTS)
