"""Names and shapes of weights that published Fourier operators and LSM share."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linearno.core.errors import UserError

Weights = Mapping[str, Tensor]
HINTS = ("grid", "coords", "unified_pos", "append", "latent")
DEFORMATION = [
    (r"^iphi\.fc0\.", "frame.deformation.lift."),
    (r"^iphi\.fc_(?:no_)?code\.", "frame.deformation.shape."),
    *((rf"^iphi\.fc{i + 1}\.", f"frame.deformation.network.{2 * i}.") for i in range(4)),
]
NAMES = [  # of the Neural-Solver-Library
    (r"^preprocess\.linear_pre\.0\.", "lift.0."),
    (r"^preprocess\.linear_post\.", "lift.2."),
    (r"^time_fc\.", "time.network."),
    (r"^fc1\.", "head.0."),
    (r"^fc2\.", "head.2."),
    (r"^fftproject_in\.", "frame.points_to_grid.mixing."),
    (r"^fftproject_out\.", "frame.grid_to_points.mixing."),
    *DEFORMATION,
]
FOURIER_LAYERS = [
    (r"^conv(\d+)\.", r"network.\1.spectral.mixing."),
    (r"^w(\d+)\.", r"network.\1.local."),
]
UNET = [
    (r"inc\.double_conv\.", "first."),
    *((rf"down{i + 1}\.maxpool_conv\.1\.double_conv\.", f"down.{i}.") for i in range(4)),
    *((rf"up{i + 1}\.conv\.double_conv\.", f"up.{i}.") for i in range(4)),
    (r"outc\.conv\.", "last."),
]
UNUSED_CODE = r"^iphi\.fc_code\."  # the library's deformations see no shape code


def rename(weights: Weights, names: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Weights under the names that pairs (regular expression, replacement) make, applied in order."""
    renamed = {}
    for name, tensor in weights.items():
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed


def from_library(weights: Weights, *names: str) -> bool:
    """Whether the weights come from the Neural-Solver-Library and have those names."""
    return all(name in weights for name in ("preprocess.linear_pre.0.weight", *names))


def numbered(weights: Weights, pattern: str) -> list[int]:
    """Numbers of the layers whose weights have that name, in order."""
    return sorted({int(found[1]) for name in weights if (found := re.match(pattern, name))})


def infer_library_arguments(
    weights: Weights, hints: Mapping[str, Any], axes: int, *, head: int = 1
) -> dict[str, Any]:
    """Arguments that all models of the Neural-Solver-Library share.

    Args:
        weights: the published state dict.
        hints: see `HINTS`.
        axes: grid axes.
        head: default hidden width of the head, in multiples of the width.
    """
    width, hidden = len(weights["preprocess.linear_post.bias"]), len(weights["fc1.bias"])
    found = {
        "width": width,
        "outputs": len(weights["fc2.bias"]),
        "head_width": None if hidden == head * width else hidden,
        "time": "time_fc.0.weight" in weights,
        "grid": hints.get("grid"),
    }
    if "fftproject_in.weights1" in weights and "latent" in hints:
        found["latent"] = hints["latent"]
    features = weights["preprocess.linear_pre.0.weight"].shape[1]
    return found | infer_features(features, hints, axes)


def infer_features(features: int, hints: Mapping[str, Any], axes: int) -> dict[str, Any]:
    """Coordinates and inputs of a point, and the features that replace or extend the coordinates."""
    found: dict[str, Any] = {name: hints[name] for name in ("append",) if name in hints}
    ref = hints.get("unified_pos")
    if ref:
        found["unified"] = {"ref": ref, "place": "coords" if hints.get("grid") is None else "grid"}
        coords, features = hints.get("coords", axes), features - ref**axes
    else:
        coords = hints.get("coords", features)
        features -= coords
    features -= {None: 0, "grid": axes, "coords": coords}[hints.get("append")]
    if features < 0:
        raise UserError("the first layer takes fewer features than unified_pos, coords and append give")
    return found | {"coords": coords, "inputs": features}


def modes_of(weights: Weights, layer: str) -> tuple[int, ...]:
    """Kept modes of each axis."""
    return tuple(weights[f"{layer}.weights1"].shape[2:])


def join_corners(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Complex weights (C, C, m1, …) of the corners of a spectrum as one real tensor (2, 2 m1, …, C, C).

    The corners are the lowest and the highest frequencies of each axis but the last, the first axis fastest.
    """
    joined = {name: tensor for name, tensor in weights.items() if not re.search(r"\.weights\d$", name)}
    layers = {name.removesuffix(".weights1") for name in weights if name.endswith(".weights1")}
    for layer in layers:
        axes = weights[f"{layer}.weights1"].dim() - 2
        corners = [weights[f"{layer}.weights{i + 1}"] for i in range(2 ** (axes - 1))]
        for axis in range(2, axes + 1):
            pairs = zip(corners[::2], corners[1::2], strict=True)
            corners = [torch.cat(pair, dim=axis) for pair in pairs]
        modes_first = corners[0].movedim((0, 1), (-2, -1))
        joined[f"{layer}.weight"] = torch.stack([modes_first.real, modes_first.imag])
    return joined
