"""Dense reference of linear attention: forms φ, ψ and the N×N kernel φψᵀ. For tests and plots."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from linearno.ops.attention import Phi, Psi
from linearno.ops.state import Bias, Points, Scale, Slices, Values, Weight

Weights = Float[Tensor, "*batch H N M"]


def slice_weights(
    x: Points,
    w_query: Weight,
    w_key: Weight,
    scale_query: Scale | None = None,
    scale_key: Scale | None = None,
    *,
    bias_query: Bias | None = None,
    bias_key: Bias | None = None,
    phi: Phi = "M",
    psi: Psi = "N",
    eps: float = 0.0,
) -> tuple[Weights, Weights]:
    """The matrices φ and ψ (Eq. 7 and 8, Table 6). O(N M) memory; arguments as in `linear_attention`."""
    query = _scores(x, w_query, scale_query, bias_query)
    key = _scores(x, w_key, scale_key, bias_key)
    phi_weights = query.softmax(dim=-1 if phi == "M" else -2)
    if psi == "phi":
        return phi_weights, key.softmax(dim=-1).softmax(dim=-2)
    if psi == "sum":
        share = key.softmax(dim=-1)
        return phi_weights, share / (share.sum(dim=-2, keepdim=True) + eps)
    return phi_weights, key.softmax(dim=-1 if psi == "M" else -2)


def dense_linear_attention(
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
    """Reference of `linear_attention`. Without `mix` it forms the N×N kernel: O(N²) memory."""
    phi_weights, psi_weights = slice_weights(
        x,
        w_query,
        w_key,
        scale_query,
        scale_key,
        bias_query=bias_query,
        bias_key=bias_key,
        phi=phi,
        psi=psi,
        eps=eps,
    )
    values = (x if value is None else value).transpose(-3, -2)  # … H N D
    if mix is None:
        return ((phi_weights @ psi_weights.mT) @ values).transpose(-3, -2)
    return (phi_weights @ mix(psi_weights.mT @ values)).transpose(-3, -2)


def _scores(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    scores = x @ weight if bias is None else x @ weight + bias  # … N H M
    return (scores if scale is None else scores * scale[:, None]).transpose(-3, -2)
