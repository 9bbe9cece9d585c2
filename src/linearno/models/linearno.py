"""LinearNO: canonical linear attention between N points and M slices (arXiv 2511.06294)."""

from typing import Any, Literal

from pydantic import model_validator
from torch import nn

from linearno.models.registry import model
from linearno.nn import (
    Mlp,
    OneLinear,
    PointConfig,
    PointTransformer,
    SelfAttention,
    SliceAttention,
    Temperature,
)
from linearno.nn.layers import make_stem
from linearno.ops import Phi, Psi


class LinearNOConfig(PointConfig):
    """Published variants differ in stem, temperature and merge; the ablations in the last four fields."""

    name: Literal["linearno"] = "linearno"
    temperature: tuple[float, float] | None = (
        0.01,
        1.0,
    )  # clamp of the learned temperatures; None: no temperature
    merge_layers: Literal[1, 2] = 1
    tied: bool = False  # one projection for φ and ψ (ablation of the generalisation step)
    mix: Literal["identity", "attention"] = "identity"  # attention: ablation of the simplification step
    phi: Phi = "M"
    psi: Psi = "N"

    @model_validator(mode="after")
    def _phi_of_phi_is_tied(self) -> "LinearNOConfig":
        if self.psi == "phi" and not self.tied:
            raise ValueError("psi='phi' is the softmax over N of φ: it needs tied=True")
        return self


@model("linearno", LinearNOConfig)
class LinearNO(PointTransformer):
    """Canonical linear attention between N points and M slices (Hu et al., 2026).

    >>> model = LinearNO(coords=2, inputs=1, outputs=1, width=64, depth=4, heads=4, slices=32)
    >>> u = model(coords, a)  # (B, N, 2), (B, N, 1) → (B, N, 1)
    """

    def __init__(self, *, coords: int, inputs: int = 0, outputs: int, **settings: Any):
        cfg = LinearNOConfig.make(settings)
        super().__init__(
            cfg,
            coords=coords,
            inputs=inputs,
            outputs=outputs,
            attention=lambda: _attention(cfg),
            init_conv=nn.init.kaiming_normal_,
        )


def _attention(cfg: LinearNOConfig) -> SliceAttention:
    width, head_width = cfg.width, cfg.width // cfg.heads
    return SliceAttention(
        heads=cfg.heads,
        stem=make_stem(width, cfg.require_grid() if cfg.stem == "conv" else None),
        merge=Mlp(width, width, width) if cfg.merge_layers == 2 else OneLinear(width, width),
        query=nn.Linear(head_width, cfg.slices, bias=False),
        key=None if cfg.tied else nn.Linear(head_width, cfg.slices, bias=False),
        value=nn.Linear(head_width, head_width, bias=False),
        mix=SelfAttention(head_width) if cfg.mix == "attention" else None,
        temperature_query=Temperature(cfg.heads, cfg.temperature) if cfg.temperature else None,
        temperature_key=Temperature(cfg.heads, cfg.temperature) if cfg.temperature and not cfg.tied else None,
        phi=cfg.phi,
        psi=cfg.psi,
    )
