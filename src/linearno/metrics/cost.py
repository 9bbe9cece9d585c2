"""What a model of the family costs, counted two ways.

N points, C width, h heads, d = C/h, M slices, L layers, r MLP ratio, k taps of the stem (1, 9 or 27).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The sizes that a count depends on."""

    points: int
    features: int  # that the first layer sees: coordinates or distances, and inputs
    outputs: int
    width: int
    heads: int
    depth: int
    slices: int
    mlp_ratio: int
    taps: int
    merge_layers: int
    time: bool

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def _shared(s: Shape) -> int:
    """Products per point outside the attention: lift, time, MLPs, head."""
    lift = 2 * s.width * (s.features + s.width) + (2 * s.width**2 if s.time else 0)
    return lift + s.depth * 2 * s.mlp_ratio * s.width**2 + s.width * s.outputs


def linearno_products(s: Shape) -> int:
    """Multiply–adds of all linear layers and convolutions, values projected at every point."""
    d, C = s.head_width, s.width
    layer = s.taps * C**2 + s.heads * (2 * d * s.slices + d**2) + s.merge_layers * C**2
    return s.points * (_shared(s) + s.depth * layer)


def transolver_products(s: Shape) -> int:
    d, C = s.head_width, s.width
    layer = 2 * s.taps * C**2 + s.heads * d * s.slices + s.merge_layers * C**2
    on_slices = s.depth * s.heads * s.slices * 3 * d**2
    return s.points * (_shared(s) + s.depth * layer) + on_slices


def norms(s: Shape) -> int:
    """The paper's tool counts four operations for each value of a layer norm."""
    return 4 * s.points * s.width * (2 * s.depth + 1)


def transolver_softmaxes(s: Shape) -> int:
    """The paper's tool counts 3m − 1 for a row of m, of softmax modules only: Transolver has them."""
    rows = s.depth * s.heads * (s.points + s.slices)
    return rows * (3 * s.slices - 1)


def attention_products(s: Shape) -> int:
    """Multiply–adds of gather and scatter, which the paper's tool does not see."""
    return 2 * s.depth * s.points * s.slices * s.width


def slice_attention_products(s: Shape) -> int:
    """Multiply–adds of the self-attention among the slices."""
    return 2 * s.depth * s.heads * s.slices**2 * s.head_width


def macs_paper_convention(model: str, s: Shape) -> int:
    """What the paper's tables call FLOPs: thop's total, in which the attention products do not appear."""
    if model == "transolver":
        return transolver_products(s) + norms(s) + transolver_softmaxes(s)
    return linearno_products(s) + norms(s)


def flops(model: str, s: Shape) -> int:
    """True floating-point operations of all matrix products, two for each multiply–add."""
    if model == "transolver":
        return 2 * (transolver_products(s) + attention_products(s) + slice_attention_products(s))
    return 2 * (linearno_products(s) + attention_products(s))


def flops_saved(s: Shape) -> int:
    """What LinearNO saves here by projecting values on M slices instead of N points."""
    return 2 * s.depth * s.heads * (s.points - s.slices) * s.head_width**2
