"""From a sample to the model's answer in physical units. Axes: S samples, B batch, N points, C channels."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.core.device import Precision, autocast, set_matmul_precision
from linearno.data.benchmark import FieldData
from linearno.data.sample import Sample
from linearno.data.scaler import Scaler


def answer(model: nn.Module, scaler: Scaler, batch: Sample, precision: Precision) -> Float[Tensor, "B N C"]:
    """Encode, predict, decode: the fields that the model gives for a batch on its own device.

    bf16 ends with the network: the result has the targets' type, and so has any loss computed from it.
    """
    with autocast(precision, batch.targets.device):
        encoded = model(scaler.coords.encode(batch.coords), scaler.encode_inputs(batch.inputs))
    return scaler.outputs.decode(encoded.to(batch.targets.dtype))


@torch.no_grad()
def predict(
    model: nn.Module,
    scaler: Scaler,
    data: FieldData,
    *,
    batch: int,
    device: torch.device,
    precision: Precision = "fp32",
) -> Float[Tensor, "S N C"]:
    """The model's answer for every sample of `data`, on the CPU; the model keeps its training mode."""
    set_matmul_precision(precision)
    training = model.training
    model.eval()
    try:
        parts = torch.arange(len(data), device=data.targets.device).split(batch)
        return torch.cat([answer(model, scaler, data.batch(i).to(device), precision).cpu() for i in parts])
    finally:
        model.train(training)
