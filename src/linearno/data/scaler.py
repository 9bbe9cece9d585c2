"""Standardise fields with statistics of the training split, stored with the weights."""

import logging

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.data.sample import Batch, FieldSpec, Part

EPS = 1e-8  # added to the deviation, as in the published protocols

log = logging.getLogger(__name__)


class Standardise(nn.Module):
    """Per channel: encode (x − μ) / σ, decode x σ + μ.

    Args:
        mean: μ of each channel (C,).
        std: σ of each channel (C,).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Float[Tensor, "C"], std: Float[Tensor, "C"]):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    def fit(cls, values: Float[Tensor, "*S C"], *, partial: bool = False) -> "Standardise":
        """Mean and unbiased standard deviation of each channel over all samples and points.

        Args:
            values: channels at all points of all samples.
            partial: ignore NaN.
        """
        flat = values.reshape(-1, values.shape[-1]).double()
        if partial:
            columns = [column[~column.isnan()] for column in flat.unbind(-1)]
            mean = torch.stack([column.mean() for column in columns])
            std = torch.stack([column.std() for column in columns]) + EPS
        else:
            mean, std = flat.mean(dim=0), flat.std(dim=0) + EPS
        return cls(mean.to(values.dtype), std.to(values.dtype))

    @classmethod
    def identity(cls, channels: int) -> "Standardise":
        return cls(torch.zeros(channels), torch.ones(channels))

    def encode(self, values: Float[Tensor, "*S C"]) -> Float[Tensor, "*S C"]:
        return (values - self.mean) / self.std

    def decode(self, values: Float[Tensor, "*S C"]) -> Float[Tensor, "*S C"]:
        return values * self.std + self.mean


class Scaler(nn.Module):
    """Maps coordinates, inputs and outputs between physical units and network values.

    Args:
        coords: standardisation of the X coordinates.
        inputs: standardisation of the input channels.
        outputs: standardisation of the predicted channels.
    """

    def __init__(self, coords: Standardise, inputs: Standardise, outputs: Standardise):
        super().__init__()
        self.coords, self.inputs, self.outputs = coords, inputs, outputs

    @classmethod
    def fit(cls, spec: FieldSpec, train: Batch) -> "Scaler":
        """Fit the parts in `spec.standardised`; other parts are not changed.

        Coordinates and inputs that are constant are shifted to 0 but not scaled, with a warning: division by
        their zero deviation would amplify any difference at inference.

        Args:
            spec: specification of the channels.
            train: the complete training split as one batch.
        """

        def part(name: Part, values: Tensor | None) -> Standardise:
            channels: tuple[str, ...] = getattr(spec, name)
            if name not in spec.standardised or values is None:
                return Standardise.identity(len(channels))
            fitted = Standardise.fit(values, partial=name == "outputs" and bool(spec.masked_outputs))
            if name != "outputs":
                _keep_scale_of_constants(fitted, values, channels)
            return fitted

        return cls(part("coords", train.coords), part("inputs", train.inputs), part("outputs", train.targets))

    @classmethod
    def blank(cls, spec: FieldSpec) -> "Scaler":
        """Identity scaler, for `load_state_dict`."""
        return cls(*(Standardise.identity(len(part)) for part in (spec.coords, spec.inputs, spec.outputs)))

    def encode_inputs(self, inputs: Tensor | None) -> Tensor | None:
        return None if inputs is None else self.inputs.encode(inputs)


def _keep_scale_of_constants(
    fitted: Standardise, values: Float[Tensor, "*S C"], channels: tuple[str, ...]
) -> None:
    flat = values.reshape(-1, values.shape[-1])
    constant = flat.amin(dim=0) == flat.amax(dim=0)
    fitted.std[constant] = 1.0
    if names := [name for name, same in zip(channels, constant.tolist(), strict=True) if same]:
        log.warning(
            "constant over the training samples, hence not scaled: %s; a model cannot learn their effect",
            ", ".join(names),
        )
