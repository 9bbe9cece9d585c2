"""Linear attention: gather, mix, scatter. Axes as in `gather_scatter`."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from linearno.ops.backend import compute_dtype, takes_kernel
from linearno.ops.gather_scatter import gather, scatter
from linearno.ops.ragged import Segments
from linearno.ops.sharded import merge_ranks
from linearno.ops.state import Bias, Points, Scale, Score, Slices, State, Values, Weight

Phi = Literal["M", "N"]  # softmax over slices or over points
Psi = Literal["N", "M", "sum", "phi"]  # softmax over N; over M; over M divided by Σ over N; over N of φ

MAX_MIXED_SLICES = 128  # limit of the mixing kernel

SCORE: dict[Psi, Score] = {"N": "linear", "M": "log_softmax", "sum": "log_softmax", "phi": "softmax"}


def slice_means(state: State, psi: Psi, eps: float = 0.0) -> Slices:
    """ψᵀ v from a gathered state.

    With ψ over M, which is not normalised over points, slices are sums value · Σw.

    Args:
        state: gathered with `SCORE[psi]`.
        psi: normalisation of ψ.
        eps: added to the denominator Σw with `psi="sum"`.
    """
    if psi == "M":
        return state.value * (state.sum * state.max.exp()).unsqueeze(-1)
    if psi == "sum" and eps:
        return state.value * (state.sum / (state.sum + eps * (-state.max).exp())).unsqueeze(-1)
    return state.value


def self_attention(
    slices: Float[Tensor, "*batch M D"],
    query: Float[Tensor, "D D"],
    key: Float[Tensor, "D D"],
    value: Float[Tensor, "D D"],
) -> Float[Tensor, "*batch M D"]:
    """softmax(S Wqᵀ (S Wkᵀ)ᵀ / √D) S Wvᵀ over the slices S of each head, with weights (out, in)."""
    if _takes_mix_kernel(slices, query):
        from linearno.ops.attention_autograd import FusedMix

        use_bf16 = compute_dtype(slices) == torch.bfloat16
        return FusedMix.apply(slices, None, None, query, key, value, 0.0, use_bf16)
    query, key, value = (weight.to(slices.dtype) for weight in (query, key, value))  # float32 or wider
    scores = linear(slices, query) @ linear(slices, key).mT / math.sqrt(slices.shape[-1])
    return scores.softmax(dim=-1) @ linear(slices, value)


def self_attention_of_means(
    state: State,
    psi: Psi,
    eps: float,
    query: Float[Tensor, "D D"],
    key: Float[Tensor, "D D"],
    value: Float[Tensor, "D D"],
) -> Slices:
    """`self_attention` of `slice_means`, in one kernel if `psi` is "sum"."""
    if psi == "sum" and eps and _takes_mix_kernel(state.value, query):
        from linearno.ops.attention_autograd import FusedMix

        use_bf16 = compute_dtype(state.value) == torch.bfloat16
        return FusedMix.apply(state.value, state.sum, state.max, query, key, value, eps, use_bf16)
    return self_attention(slice_means(state, psi, eps), query, key, value)


def _takes_mix_kernel(slices: Tensor, weight: Tensor) -> bool:
    refusal = None
    if {slices.dtype, weight.dtype} != {torch.float32}:
        refusal = f"slices are {slices.dtype} and weights {weight.dtype}, not float32"
    elif slices.shape[-2] > MAX_MIXED_SLICES:
        refusal = f"the kernel takes up to {MAX_MIXED_SLICES} slices, not {slices.shape[-2]}"
    return not torch.compiler.is_compiling() and takes_kernel("slice mix", slices, refusal)


def linear_attention(
    x: Points,
    w_query: Weight,
    w_key: Weight,
    scale_query: Scale | None = None,
    scale_key: Scale | None = None,
    *,
    value: Values | None = None,
    bias_query: Bias | None = None,
    bias_key: Bias | None = None,
    phi: Phi = "M",
    psi: Psi = "N",
    mix: Callable[[Slices], Slices] | None = None,
    eps: float = 0.0,
    segments: Segments | None = None,
) -> Values:
    """φ(Q) G(ψ(K)ᵀ V) in O(N M D) without forming an N×M tensor (Eq. 6 and 9).

    For φ over M and ψ over N the rows of φψᵀ sum to one: constants pass unchanged, and repeating every point
    leaves the output at each point unchanged. Reference: https://arxiv.org/abs/2511.06294.

    Args:
        x: features (…, N, H, D).
        w_query: projection (D, M) to the scores of φ.
        w_key: projection (D, M) to the scores of ψ.
        scale_query: inverse temperature (H,) of the query scores; None: 1.
        scale_key: inverse temperature (H,) of the key scores; None: 1.
        value: values (…, N, H, E); None: x.
        bias_query: bias (M,) of the query scores.
        bias_key: bias (M,) of the key scores.
        phi: axis over which φ is a softmax.
        psi: normalisation of ψ.
        mix: G, a map of slices (…, H, M, E); None: identity.
        eps: added to the denominator of ψ with `psi="sum"`.
        segments: offsets of packed meshes, each attending to itself.
    """
    local_state = gather(x, w_key, scale_key, bias=bias_key, value=value, score=SCORE[psi], segments=segments)
    state = merge_ranks(local_state)
    slices = slice_means(state, psi, eps)
    state = state._replace(value=slices if mix is None else mix(slices))
    normaliser = None
    if phi == "N":
        normaliser = merge_ranks(gather(x, w_query, scale_query, bias=bias_query, segments=segments))
    return scatter(x, w_query, scale_query, state, bias=bias_query, normaliser=normaliser, segments=segments)
