"""What a model of the family costs, counted two ways.

N points, C width, h heads, d = C/h, M slices, L layers, r MLP ratio, k taps of the stem (1, 9 or 27).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from linearno.core.errors import entry


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
    stems: int = 1  # of the attention: a second one makes the values
    scores: int = 2  # projections to slices; 1 if queries and keys share one
    values: bool = True  # whether values are projected
    mixes: bool = False  # whether slices attend to each other

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def _shared(s: Shape) -> int:
    """Products per point outside the attention: lift, time, MLPs, head."""
    lift = 2 * s.width * (s.features + s.width) + (2 * s.width**2 if s.time else 0)
    return lift + s.depth * 2 * s.mlp_ratio * s.width**2 + s.width * s.outputs


def products(s: Shape) -> int:
    """Multiply–adds of all linear layers and convolutions, values projected at every point."""
    d, C = s.head_width, s.width
    layer = s.stems * s.taps * C**2 + s.heads * (s.scores * d * s.slices + s.values * d**2)
    on_slices = s.mixes * s.depth * s.heads * s.slices * 3 * d**2
    return s.points * (_shared(s) + s.depth * (layer + s.merge_layers * C**2)) + on_slices


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
    softmaxes = entry("published model with a printed cost", model, _SOFTMAX_MACS)(s)
    return products(s) + norms(s) + softmaxes


_SOFTMAX_MACS: dict[str, Callable[[Shape], int]] = {
    "linearno": lambda s: 0,
    "transolver": transolver_softmaxes,
}


def flops(s: Shape) -> int:
    """Floating-point operations of all matrix products, two for each multiply–add."""
    return 2 * (products(s) + attention_products(s) + s.mixes * slice_attention_products(s))


def _attention_flops(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *_: object, **__: object
) -> int:
    return sdpa_flop_count(query, key, value)


# PyTorch's counter knows the attention kernels of CUDA, not that of the CPU.
_CPU_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}


def count_flops(model: nn.Module, *args: Tensor | None, **kwargs: Tensor) -> int:
    """Floating-point operations of the matrix products, convolutions and attention in one forward call.

    Counts what runs, for any model (`torch.utils.flop_counter`); element-wise work does not count.
    """
    training = model.training
    model.eval()
    try:
        counter = FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION)
        with counter, torch.no_grad():
            model(*args, **kwargs)
        return counter.get_total_flops()
    finally:
        model.train(training)


def flops_saved(s: Shape) -> int:
    """What LinearNO saves here by projecting values on M slices instead of N points."""
    return 2 * s.depth * s.heads * (s.points - s.slices) * s.head_width**2
