"""Linear attention: gather, mix, scatter. Axes as in `verbs`."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from linearno.ops.choice import computes_in, takes_kernel
from linearno.ops.segments import Segments
from linearno.ops.sharded import merge_ranks
from linearno.ops.state import Bias, Points, Scale, Score, Slices, State, Values, Weight
from linearno.ops.verbs import gather, scatter

Phi = Literal["M", "N"]  # softmax over the slices, or over the points
Psi = Literal["N", "M", "sum", "phi"]  # softmax over N, over M, over M then sum-norm over N, over N of φ

MOST_MIXED = 128  # slices that a program of the mixing kernel holds

SCORE: dict[Psi, Score] = {"N": "linear", "M": "log_softmax", "sum": "log_softmax", "phi": "softmax"}


def slice_means(state: State, psi: Psi, eps: float = 0.0) -> Slices:
    """ψᵀ v from a gathered state; `eps` joins the sum of the sum-norm's denominator.

    ψ over M is not normalised over the points: its slices are sums, value · Σw.
    """
    if psi == "M":
        return state.value * (state.sum * state.max.exp()).unsqueeze(-1)
    if psi == "sum" and eps:
        if not torch.compiler.is_compiling() and takes_kernel(
            "slice means", state.value, _narrow(state.value)
        ):
            from linearno.ops.fused import FusedDamp

            value, total, top = (part.contiguous() for part in (state.value, state.sum, state.max))
            return FusedDamp.apply(value, total, top, eps)
        return state.value * (state.sum / (state.sum + eps * (-state.max).exp())).unsqueeze(-1)
    return state.value


def self_attention(
    slices: Float[Tensor, "*batch M D"],
    query: Float[Tensor, "D D"],
    key: Float[Tensor, "D D"],
    value: Float[Tensor, "D D"],
) -> Float[Tensor, "*batch M D"]:
    """softmax(S q (S k)ᵀ / √D) S v among the slices of each head; the maps are (out, in)."""
    refusal = _narrow(slices)
    if slices.shape[-2] > MOST_MIXED:
        refusal = f"the kernel mixes up to {MOST_MIXED} slices, not {slices.shape[-2]}"
    if not torch.compiler.is_compiling() and takes_kernel("slice mix", slices, refusal):
        from linearno.ops.fused import FusedMix

        return FusedMix.apply(slices, query, key, value, computes_in(slices) == torch.bfloat16)
    scores = linear(slices, query) @ linear(slices, key).mT / math.sqrt(slices.shape[-1])
    return scores.softmax(dim=-1) @ linear(slices, value)


def _narrow(slices: Tensor) -> str | None:
    return None if slices.dtype == torch.float32 else f"slices are {slices.dtype}, not float32"


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
    parts = gather(x, w_key, scale_key, bias=bias_key, value=value, score=SCORE[psi], segments=segments)
    state = merge_ranks(parts)
    slices = slice_means(state, psi, eps)
    state = state._replace(value=slices if mix is None else mix(slices))
    normaliser = None
    if phi == "N":
        normaliser = merge_ranks(gather(x, w_query, scale_query, bias=bias_query, segments=segments))
    return scatter(x, w_query, scale_query, state, bias=bias_query, normaliser=normaliser, segments=segments)
