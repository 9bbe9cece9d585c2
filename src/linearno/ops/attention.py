"""Linear attention: gather, mix, scatter. Axes as in `verbs`."""

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

Phi = Literal["M", "N"]  # softmax over the slices, or over the points
Psi = Literal["N", "M", "sum", "phi"]  # softmax over N, over M, over M then sum-norm over N, over N of φ

MAX_MIXED_SLICES = 128  # slices that a program of the mixing kernel holds

SCORE: dict[Psi, Score] = {"N": "linear", "M": "log_softmax", "sum": "log_softmax", "phi": "softmax"}


def slice_means(state: State, psi: Psi, eps: float = 0.0) -> Slices:
    """ψᵀ v from a gathered state; `eps` joins the sum of the sum-norm's denominator.

    ψ over M is not normalised over the points: its slices are sums, value · Σw.
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
    """softmax(S q (S k)ᵀ / √D) S v among the slices of each head; the maps are (out, in)."""
    if _takes_mix_kernel(slices, query):
        from linearno.ops.fused import FusedMix

        use_bf16 = compute_dtype(slices) == torch.bfloat16
        return FusedMix.apply(slices, None, None, query, key, value, 0.0, use_bf16)
    query, key, value = (weight.to(slices.dtype) for weight in (query, key, value))  # states may be wider
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
    """`self_attention` of a state's `slice_means`, by one kernel where there is one for both."""
    if psi == "sum" and eps and _takes_mix_kernel(state.value, query):
        from linearno.ops.fused import FusedMix

        use_bf16 = compute_dtype(state.value) == torch.bfloat16
        return FusedMix.apply(state.value, state.sum, state.max, query, key, value, eps, use_bf16)
    return self_attention(slice_means(state, psi, eps), query, key, value)


def _takes_mix_kernel(slices: Tensor, weight: Tensor) -> bool:
    refusal = None
    if {slices.dtype, weight.dtype} != {torch.float32}:
        refusal = f"slices are {slices.dtype} and weights {weight.dtype}, not float32"
    elif slices.shape[-2] > MAX_MIXED_SLICES:
        refusal = f"the kernel mixes up to {MAX_MIXED_SLICES} slices, not {slices.shape[-2]}"
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
    """φ(Q) G(ψ(K)ᵀ V) in O(N M D), never forming an N×M tensor (Eq. 6 and 9).

    For φ over M and ψ over N the rows of φψᵀ sum to one, so constants pass unchanged, and repeating
    every point leaves the output at each point as it was. With `segments` each is by itself.
    Reference: https://arxiv.org/abs/2511.06294.
    """
    local_state = gather(x, w_key, scale_key, bias=bias_key, value=value, score=SCORE[psi], segments=segments)
    state = merge_ranks(local_state)
    slices = slice_means(state, psi, eps)
    state = state._replace(value=slices if mix is None else mix(slices))
    normaliser = None
    if phi == "N":
        normaliser = merge_ranks(gather(x, w_query, scale_query, bias=bias_query, segments=segments))
    return scatter(x, w_query, scale_query, state, bias=bias_query, normaliser=normaliser, segments=segments)
