"""Names and shapes of weights that the published LinearNO, Transolver and Cross-LinearNO share."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from linearno.core.errors import UserError
from linearno.models.published_spectral import infer_features

HINTS = ("grid", "coords", "unified_pos")
AIRFRANS_BOX = ((-2.0, 4.0), (-1.5, 1.5))  # bounds of the reference points for AirfRANS

NAMES = [
    (r"preprocess\.linear_pre\.0\.", "lift.0."),
    (r"preprocess\.linear_post\.", "lift.2."),
    (r"time_fc\.", "time.network."),
    (r"blocks\.\d+\.ln_3\.", "norm."),
    (r"blocks\.\d+\.mlp2\.", "head."),
    (r"\.ln_1\.", ".norm_attention."),
    (r"\.ln_2\.", ".norm_mlp."),
    (r"\.mlp\.linear_pre\.0\.", ".mlp.0."),
    (r"\.mlp\.linear_post\.", ".mlp.2."),
    (r"\.Attn\.", ".attention."),
    (r"\.in_project_x\.", ".stem."),
    (r"\.in_project_fx\.", ".value_stem."),
    (r"\.to_out\.", ".merge."),
    (r"\.temp(?:er|re)ature_q$", ".temperature_query.value"),
    (r"\.temp(?:er|re)ature_k$", ".temperature_key.value"),
]
LINEARNO_NAMES = [*NAMES, (r"\.to_q\.", ".query."), (r"\.to_k\.", ".key."), (r"\.to_v\.", ".value.")]

LIBRARY_HINTS = ("heads", "grid", "coords", "unified_pos", "append")
LIBRARY_NAMES = [  # of the transformers of the Neural-Solver-Library
    *NAMES,
    (r"^lift\.", "lift.network."),
    (r"^norm\.", "head.0."),
    (r"^head\.(weight|bias)$", r"head.1.\1"),
]


def published_family(weights: Mapping[str, Tensor]) -> str | None:
    """Which of the published classes the weights belong to; None for any other."""
    if "preprocess.linear_pre.0.weight" not in weights or "blocks.0.Attn.to_q.weight" not in weights:
        return None
    if "blocks.0.Attn.proj_temperature.0.weight" in weights:
        return "transolver++"
    if "cross_block.ln_1.weight" in weights:
        return "cross-linearno"
    return "transolver" if "blocks.0.Attn.in_project_slice.weight" in weights else "linearno"


def infer_settings(weights: Mapping[str, Tensor], scores: str) -> dict[str, Any]:
    """Settings of any of these models. `scores`: the layer whose outputs are the slices."""
    width = weights["preprocess.linear_post.bias"].shape[0]
    return {
        "width": width,
        "depth": 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks.")),
        "heads": width // weights["blocks.0.Attn.to_v.weight"].shape[0],
        "slices": weights[f"blocks.0.Attn.{scores}.weight"].shape[0],
        "mlp_ratio": weights["blocks.0.mlp.linear_pre.0.bias"].shape[0] // width,
    }


def infer_library_arguments(
    weights: Mapping[str, Tensor], hints: Mapping[str, Any], *, lift: str = "preprocess"
) -> dict[str, Any]:
    """Arguments that the transformers of the Neural-Solver-Library share.

    Args:
        weights: the published state dict.
        hints: see `LIBRARY_HINTS`.
        lift: name of the layers that see all features of a point.
    """
    width, grid = len(weights["placeholder"]), hints.get("grid")
    depth = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
    found = {"width": width, "depth": depth, "time": "time_fc.0.weight" in weights, "grid": grid}
    found |= {name: hints[name] for name in ("heads",) if name in hints}
    if "blocks.0.mlp.linear_pre.0.bias" in weights:
        found["mlp_ratio"] = len(weights["blocks.0.mlp.linear_pre.0.bias"]) // width
        found["outputs"] = len(weights[f"blocks.{depth - 1}.mlp2.bias"])
    features = weights[f"{lift}.linear_pre.0.weight"].shape[1]
    return found | infer_features(features, hints, 2 if grid is None else len(grid))


def infer_point_arguments(
    weights: Mapping[str, Tensor], hints: Mapping[str, Any], *, scores: str, irregular: str, airfrans: bool
) -> dict[str, Any]:
    """Arguments of a model that predicts at its input points.

    Args:
        weights: the published state dict.
        hints: see `HINTS`.
        scores: the layer whose outputs are the slices.
        irregular: what a unified position without a grid is measured from.
        airfrans: whether the weights are of the variant for AirfRANS.
    """
    stem = weights["blocks.0.Attn.in_project_x.weight"]
    features = weights["preprocess.linear_pre.0.weight"].shape[1]
    grid, ref = hints.get("grid"), hints.get("unified_pos")
    if ref is True:
        raise UserError("unified_pos is the number of reference points an axis (`ref`), such as 8; got True")
    if stem.dim() > 2 and grid is not None and len(grid) != stem.dim() - 2:
        names = "(rows, columns)" if stem.dim() == 4 else "(rows, columns, layers)"
        raise UserError(f"this model has convolutions: give its mesh as grid={names}, got {grid}")
    found = infer_settings(weights, scores) | {
        "stem": "conv" if stem.dim() > 2 else "linear",
        "time": "time_fc.0.weight" in weights,
        "outputs": max(len(weights[name]) for name in weights if name.endswith(".mlp2.bias")),
    }
    if grid is not None and not (ref and airfrans):
        found["grid"] = grid
    axes = 2 if grid is None else len(grid)
    if ref:
        features -= ref**axes
        if features < 0:
            raise UserError(f"unified_pos={ref} asks for more features than there are")
    if ref and not airfrans:  # distances replace the coordinates
        unified = {"ref": ref, "place": irregular if grid is None else "grid"}
        return found | {"unified": unified, "coords": axes, "inputs": features}
    if ref:
        found["unified"] = {"ref": ref, "place": "positions", "box": AIRFRANS_BOX}
    coords = hints.get("coords", features)
    return found | {"coords": coords, "inputs": features - coords}


def convert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name convolutions as `GridConv` does, and flatten the temperatures of the heads."""
    convolves = weights["blocks.0.attention.stem.weight"].dim() > 2
    return {
        name.replace("stem.", "stem.conv.") if convolves else name: (
            tensor.flatten() if ".temperature_" in name else tensor
        )
        for name, tensor in weights.items()
    }
