"""Transolver (Wu et al., ICML 2024): linear attention with tied projections, sum-norm and slice attention."""

from typing import Any, Literal

from torch import nn

from linearno.models.registry import model
from linearno.nn import OneLinear, PointConfig, PointTransformer, SelfAttention, SliceAttention, Temperature
from linearno.nn.layers import make_stem

CLAMP = (0.1, 5.0)  # of the temperature, on structured meshes only
EPS = 1e-5  # joins the denominator of the sum-norm


class TransolverConfig(PointConfig):
    name: Literal["transolver"] = "transolver"


@model("transolver", TransolverConfig)
class Transolver(PointTransformer):
    """Physics-Attention, as the special case of linear attention that it is (Wu et al., 2024).

    >>> model = Transolver(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=4, slices=32)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 1) → (B, N, 1)

    On a structured mesh (`stem="conv"`, 2-D or 3-D) the temperature is clamped and the placeholder joins
    only without inputs; on an irregular one it is free and the placeholder always joins.
    """

    def __init__(self, *, coords: int, inputs: int = 0, outputs: int, **settings: Any):
        cfg = TransolverConfig.make(settings)
        super().__init__(
            cfg,
            coords=coords,
            inputs=inputs,
            outputs=outputs,
            attention=lambda: _attention(cfg),
            always_placeholder=cfg.stem == "linear",
        )


def _attention(cfg: TransolverConfig) -> SliceAttention:
    width, head_width = cfg.width, cfg.width // cfg.heads
    grid = cfg.require_grid() if cfg.stem == "conv" else None
    return SliceAttention(
        heads=cfg.heads,
        stem=make_stem(width, grid),
        value_stem=make_stem(width, grid),
        merge=OneLinear(width, width),
        query=nn.Linear(head_width, cfg.slices),
        mix=SelfAttention(head_width),
        temperature_query=Temperature(cfg.heads, None if grid is None else CLAMP),
        psi="sum",
        eps=EPS,
    )
