"""Cost of slice-attention models in closed form, and of any model by counting the operations of a call.

N points, C width, h heads, d = C/h, M slices, L layers, r MLP ratio, k taps of the input projection.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes that determine the cost of a model.

    Args:
        points: N.
        features: inputs of the first layer: coordinates or reference distances, and input channels.
        outputs: output channels.
        width: C.
        heads: h.
        depth: L.
        slices: M.
        mlp_ratio: r.
        taps: k.
        merge_layers: linear layers of the output projection.
        time: whether the model is time-conditioned.
        stems: input projections of the attention; a second one computes the values.
        scores: projections to slices; 1 if queries and keys share it.
        values: whether values are projected.
        mixes: whether slices attend to each other.
    """

    points: int
    features: int
    outputs: int
    width: int
    heads: int
    depth: int
    slices: int
    mlp_ratio: int
    taps: int
    merge_layers: int
    time: bool
    stems: int = 1
    scores: int = 2
    values: bool = True
    mixes: bool = False

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def linear_macs(s: Shape) -> int:
    """Multiply–adds of all linear layers and convolutions, with values projected at every point."""
    d, C = s.head_width, s.width
    lift = 2 * C * (s.features + C) + (2 * C**2 if s.time else 0)
    attention = s.stems * s.taps * C**2 + s.heads * (s.scores * d * s.slices + s.values * d**2)
    layer = attention + s.merge_layers * C**2 + 2 * s.mlp_ratio * C**2
    on_slices = s.mixes * s.depth * s.heads * s.slices * 3 * d**2
    return s.points * (lift + s.depth * layer + C * s.outputs) + on_slices


def flops(s: Shape) -> int:
    """Floating-point operations of all matrix products, two for each multiply–add."""
    gather_scatter = 2 * s.depth * s.points * s.slices * s.width
    slice_attention = 2 * s.depth * s.heads * s.slices**2 * s.head_width
    return 2 * (linear_macs(s) + gather_scatter + s.mixes * slice_attention)


def count_flops(model: nn.Module, *args: Tensor | None, **kwargs: Tensor) -> int:
    """Floating-point operations of matrix products, convolutions and attention in one forward call.

    Counted with `torch.utils.flop_counter` for any model; element-wise operations are not counted.
    """
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count  # imports Triton, half a second

    def attention_flops(query: Any, key: Any, value: Any, *_: object, **__: object) -> int:
        return sdpa_flop_count(query, key, value)

    # PyTorch's counter supports the attention kernels of CUDA, but not that of the CPU.
    cpu_attention = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}
    training = model.training
    model.eval()
    try:
        counter = FlopCounterMode(display=False, custom_mapping=cpu_attention)
        with counter, torch.no_grad():
            model(*args, **kwargs)
        return counter.get_total_flops()
    finally:
        model.train(training)
