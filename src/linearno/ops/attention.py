"""Linear attention: gather, mix, scatter. Axes as in `verbs`."""

from collections.abc import Callable
from typing import Literal

from linearno.ops.verbs import Bias, Points, Scale, Score, Slices, State, Values, Weight, gather, scatter

Phi = Literal["M", "N"]  # softmax over the slices, or over the points
Psi = Literal["N", "M", "sum", "phi"]  # softmax over N, over M, over M then sum-norm over N, over N of φ

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
) -> Values:
    """φ(Q) G(ψ(K)ᵀ V) in O(N M D), never forming an N×M tensor (Eq. 6 and 9).

    For φ over M and ψ over N the rows of φψᵀ sum to one, so constants pass unchanged, and repeating
    every point leaves the output at each point as it was. Reference: https://arxiv.org/abs/2511.06294.
    """
    state = gather(x, w_key, scale_key, bias=bias_key, value=value, score=SCORE[psi])
    slices = slice_means(state, psi, eps)
    state = state._replace(value=slices if mix is None else mix(slices))
    normaliser = gather(x, w_query, scale_query, bias=bias_query) if phi == "N" else None
    return scatter(x, w_query, scale_query, state, bias=bias_query, normaliser=normaliser)
