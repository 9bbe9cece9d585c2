"""Names and shapes of the weights of a GINO of neuraloperator."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from linearno.core.errors import UserError
from linearno.models.registry import PublishedFormat

HINTS = ("latent", "box", "radius_in", "radius_out", "neighbours", "embedding", "transform")


def hidden_of(weights: Mapping[str, Tensor], network: str) -> tuple[int, ...]:
    """Channels of the hidden layers of a published network."""
    biases = [name for name in weights if re.fullmatch(rf"{re.escape(network)}\.fcs\.\d+\.bias", name)]
    return tuple(len(weights[f"{network}.fcs.{number}.bias"]) for number in range(len(biases) - 1))


def infer_published(weights: Mapping[str, Tensor], hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a GINO of neuraloperator."""
    networks = [f"gno_{end}.integral_transform.channel_mlp" for end in ("in", "out")]
    first = f"{networks[0]}.fcs.0.weight"
    if first not in weights:
        return None
    if "fno_blocks.convs.0.weight.core" in weights:
        raise UserError(
            "these weights of a gino have factorised spectral weights: only dense ones are supported"
        )
    kernels = [hidden_of(weights, network) for network in networks]
    width, _, *modes = weights["fno_blocks.convs.0.weight.tensor"].shape
    if any(mode % 2 for mode in modes[:-1]):
        raise UserError(f"these weights of a gino have {tuple(modes)} modes: only even numbers are supported")
    coords = len(modes)
    features = len(weights[f"{networks[0]}.fcs.{len(kernels[0])}.bias"])
    seen = weights[first].shape[1] - (features if hints.get("transform") == "nonlinear" else 0)
    return {
        "coords": coords,
        "inputs": features - coords,
        "outputs": len(weights["projection.fcs.1.bias"]),
        "width": width,
        "modes": (*(mode // 2 for mode in modes[:-1]), modes[-1]),
        "depth": sum(re.fullmatch(r"fno_blocks\.convs\.\d+\.bias", name) is not None for name in weights),
        "frequencies": seen // (4 * coords),
        "kernel_in": kernels[0],
        "kernel_out": kernels[1],
        "lift_width": hidden_of(weights, "lifting")[0],
        "mlp_width": hidden_of(weights, "fno_blocks.channel_mlp.0")[0],
        "head_width": hidden_of(weights, "projection")[0],
        "latent_inputs": weights["lifting.fcs.0.weight"].shape[1] - features,
        "box": ((0.0, 1.0),) * coords,
    } | {name: hints[name] for name in HINTS if name in hints}


def convert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Centred modes in the order of the transform, modes before channels, and maps of points as matrices."""
    axes = next(tensor.dim() - 2 for name, tensor in weights.items() if name.endswith(".mixing.weight"))
    found = {}
    for name, tensor in weights.items():
        if name.endswith(".mixing.weight"):
            centred = [*range(2, 1 + axes)]
            ordered = torch.fft.ifftshift(tensor, dim=centred) if centred else tensor
            modes_first = ordered.movedim((0, 1), (-2, -1))
            tensor = torch.stack([modes_first.real, modes_first.imag])
        elif name.endswith(".local.bias"):
            tensor = tensor.flatten()
        elif name.endswith(".gate"):
            tensor = tensor[0]
        elif name.startswith("blocks.") and tensor.dim() == 3:
            tensor = tensor.unflatten(-1, (1,) * axes)
        elif tensor.dim() == 3:
            tensor = tensor.squeeze(-1)
        found[name] = tensor
    return found


PUBLISHED = PublishedFormat(
    infer=infer_published,
    names=[
        (r"^gno_in\.integral_transform\.channel_mlp\.fcs\.", "to_grid.kernel.layers."),
        (r"^gno_out\.integral_transform\.channel_mlp\.fcs\.", "to_points.kernel.layers."),
        (r"^lifting\.fcs\.", "lift.layers."),
        (r"^projection\.fcs\.", "head.layers."),
        (r"^fno_blocks\.convs\.(\d+)\.bias$", r"blocks.\1.fourier.local.bias"),
        (r"^fno_blocks\.convs\.(\d+)\.weight\.tensor$", r"blocks.\1.fourier.spectral.mixing.weight"),
        (r"^fno_blocks\.fno_skips\.(\d+)\.conv\.", r"blocks.\1.fourier.local."),
        (r"^fno_blocks\.channel_mlp\.(\d+)\.fcs\.0\.", r"blocks.\1.mlp.0."),
        (r"^fno_blocks\.channel_mlp\.(\d+)\.fcs\.1\.", r"blocks.\1.mlp.2."),
        (r"^fno_blocks\.channel_mlp_skips\.(\d+)\.weight$", r"blocks.\1.gate"),
    ],
    hints=HINTS,
    convert=convert,
)
