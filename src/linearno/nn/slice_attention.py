"""Slice attention: one module whose settings define the models of the family.

Axes: B batch, N points, K gathered points (if other than the N points), W width, H heads,
D head width (W = H·D, head-major), M slices.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.nn.layers import Branch, Linear
from linearno.ops import (
    Phi,
    Psi,
    Segments,
    State,
    gather,
    gather_with_passthrough,
    merge_ranks,
    scatter,
    self_attention,
    self_attention_of_means,
    slice_means,
    slice_weights,
)
from linearno.ops.attention import SCORE
from linearno.ops.layers import inverse

Features = Float[Tensor, "B N W"]
Heads = Float[Tensor, "B N H D"]
Weights = Float[Tensor, "B H N M"]


class Temperature(nn.Module):
    """Learned temperature of each head; scores are divided by it.

    Args:
        heads: H.
        clamp: bounds of the temperature; None: unbounded.
    """

    def __init__(self, heads: int, clamp: tuple[float, float] | None):
        super().__init__()
        self.value = nn.Parameter(torch.full((heads,), 0.5))
        self.clamp = clamp

    def scale(self) -> Float[Tensor, "H"]:
        return inverse(self.value, *(self.clamp or ()))


class SelfAttention(nn.Module):
    """Softmax attention among the slices of a head, with projections shared by the heads.

    Args:
        head_width: D.
    """

    def __init__(self, head_width: int):
        super().__init__()
        self.query = nn.Linear(head_width, head_width, bias=False)
        self.key = nn.Linear(head_width, head_width, bias=False)
        self.value = nn.Linear(head_width, head_width, bias=False)

    def forward(self, slices: Float[Tensor, "*B M D"]) -> Float[Tensor, "*B M D"]:
        return self_attention(slices, self.query.weight, self.key.weight, self.value.weight)

    def of_means(self, state: State, psi: Psi, eps: float) -> Float[Tensor, "*B M D"]:
        """Attention among the means of the slices, (B, H, M, D)."""
        return self_attention_of_means(state, psi, eps, self.query.weight, self.key.weight, self.value.weight)


class SliceAttention(nn.Module):
    """merge(φ G(ψᵀ V)) on features X = stem(h), with φ and ψ computed from X.

    Args:
        heads: H.
        stem: input projection W → W, pointwise or a convolution.
        merge: output projection W → W.
        query: scores of φ, D → M, shared by the heads.
        key: scores of ψ, D → M; None: those of φ.
        value: V = value(X), D → D without a bias: it acts on M slices instead of N points; None: V = X.
        value_stem: V = value_stem(h) instead, a second input projection (Transolver).
        key_stem: ψ and V from key_stem(h) instead, for states gathered at other points (cross-attention).
        mix: G, attention among the slices; None: the identity.
        temperature_query: divides the scores of φ.
        temperature_key: divides the scores of ψ; unused if `key` is None.
        phi: dimension of the softmax of φ: slices "M" or points "N".
        psi: normalisation of ψ: over points "N", over slices "M", "sum", or "phi".
        eps: added to the denominator of the normalisation "sum".
    """

    def __init__(
        self,
        *,
        heads: int,
        stem: nn.Module,
        merge: Branch,
        query: nn.Linear,
        key: nn.Linear | None = None,
        value: nn.Linear | None = None,
        value_stem: nn.Module | None = None,
        key_stem: nn.Module | None = None,
        mix: SelfAttention | None = None,
        temperature_query: Temperature | None = None,
        temperature_key: Temperature | None = None,
        phi: Phi = "M",
        psi: Psi = "N",
        eps: float = 0.0,
    ):
        super().__init__()
        self.heads, self.phi, self.psi, self.eps = heads, phi, psi, eps
        self.stem, self.merge, self.query, self.key = stem, merge, query, key
        self.value, self.value_stem, self.key_stem, self.mix = value, value_stem, key_stem, mix
        self.temperature_query, self.temperature_key = temperature_query, temperature_key

    def forward(
        self, h: Features, state: State | None = None, segments: Segments | None = None
    ) -> tuple[Features, State]:
        """Output at the points of `h`, and the state that was scattered."""
        x, state, normaliser = self.encode(h, state, segments)
        return self.merge(self.scatter(x, state, normaliser, segments)), state

    def encode(
        self, h: Features, state: State | None = None, segments: Segments | None = None
    ) -> tuple[Heads, State, State | None]:
        """Compute what depends on all points: features by head, the state, and the normaliser of φ if any.

        Without a state the points of `h` are gathered; otherwise `state` is used. With `segments` (packed
        meshes) states have an entry per mesh.
        """
        x, h = self._project(h)
        normaliser = None
        if state is None and self.key_stem is None:
            x, state = self._gather(x, h, segments)
        elif state is None:
            state = self.gather(h, segments)
        if self.phi == "N":
            w_query, scale_query, bias_query = self._query()
            normaliser = merge_ranks(gather(x, w_query, scale_query, bias=bias_query, segments=segments))
        return x, state, normaliser

    def gather(self, h: Features, segments: Segments | None = None) -> State:
        """Gather the points of `h` into a state."""
        return self._gather(self._split((self.key_stem or self.stem)(h)), h, segments)[1]

    def partial_state(self, h: Features) -> State:
        """Gather some points of a mesh. Partial states merge exactly (`ops.merge`); `finalize` turns the
        merged state into that of the layer."""
        return self._partial_state(self._split((self.key_stem or self.stem)(h)), h)[1]

    def finalize(self, whole: State) -> State:
        """Normalise and mix the gathered state of all points of this process."""
        whole = merge_ranks(whole)
        mean = slice_means if self.mix is None else self.mix.of_means
        return whole._replace(value=mean(whole, self.psi, self.eps))

    def decode(self, x: Heads, state: State, normaliser: State | None = None) -> Features:
        """Output at points with features `x`, computed point by point."""
        return self.merge(self.scatter(x, state, normaliser))

    def scatter(
        self, x: Heads, state: State, normaliser: State | None = None, segments: Segments | None = None
    ) -> Features:
        """Scatter the state to points with features `x`, heads concatenated, before `merge`."""
        weight, scale, bias = self._query()
        out = scatter(x, weight, scale, state, bias=bias, normaliser=normaliser, segments=segments)
        return out.flatten(-2)

    def weights(
        self, h: Features, gathered: Float[Tensor, "B K W"] | None = None
    ) -> tuple[Weights, Float[Tensor, "B H K M"]]:
        """φ at the points of `h` and ψ at the `gathered` points (default: the same ones), as matrices."""
        keys = (self.key_stem or self.stem)(h if gathered is None else gathered)
        return self._weights(self.stem(h))[0], self._weights(keys)[1]

    def _weights(self, features: Tensor) -> tuple[Tensor, Tensor]:
        (w_query, scale_query, bias_query), (w_key, scale_key, bias_key) = self._query(), self._key()
        return slice_weights(
            self._split(features),
            w_query,
            w_key,
            scale_query,
            scale_key,
            bias_query=bias_query,
            bias_key=bias_key,
            phi=self.phi,
            psi=self.psi,
            eps=self.eps,
        )

    def _project(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Features by head, and h for the second stem."""
        x, h = self.stem.with_passthrough(h) if isinstance(self.stem, Linear) else (self.stem(h), h)
        return self._split(x), h

    def _gather(self, x: Tensor, h: Tensor, segments: Segments | None) -> tuple[Tensor, State]:
        x, whole = self._partial_state(x, h, segments)
        return x, self.finalize(whole)

    def _partial_state(self, x: Tensor, h: Tensor, segments: Segments | None = None) -> tuple[Tensor, State]:
        value = None if self.value_stem is None else self._split(self.value_stem(h))
        project = None if self.value is None else self.value.weight.mT
        weight, scale, bias = self._key()
        return gather_with_passthrough(
            x,
            weight,
            scale,
            bias=bias,
            value=value,
            project=project,
            score=SCORE[self.psi],
            segments=segments,
        )

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))

    def _query(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        scale = None if self.temperature_query is None else self.temperature_query.scale()
        return self.query.weight.mT, scale, self.query.bias

    def _key(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if self.key is None:
            return self._query()
        scale = None if self.temperature_key is None else self.temperature_key.scale()
        return self.key.weight.mT, scale, self.key.bias
