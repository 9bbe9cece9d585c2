"""Standardisation with the statistics of the training split, saved with the weights."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.data.sample import Batch, FieldSpec, Part

EPS = 1e-8  # added to the deviation, so that a constant channel stays finite


class Standardise(nn.Module):
    """Per channel: encode (x − μ) / σ, decode x σ + μ."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Float[Tensor, "C"], std: Float[Tensor, "C"]):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    def fit(cls, values: Float[Tensor, "*S C"], *, partial: bool = False) -> "Standardise":
        """One mean and one unbiased deviation for each channel, over samples and points together.

        With `partial` those that are NaN are left out.
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
    """The three parts of a sample between physical units and what the network sees."""

    def __init__(self, coords: Standardise, inputs: Standardise, outputs: Standardise):
        super().__init__()
        self.coords, self.inputs, self.outputs = coords, inputs, outputs

    @classmethod
    def fit(cls, spec: FieldSpec, train: Batch) -> "Scaler":
        """Fit the parts that `spec.standardised` names on a batch that holds the whole training split."""

        def part(name: Part, values: Tensor | None, channels: int) -> Standardise:
            if name not in spec.standardised or values is None:
                return Standardise.identity(channels)
            return Standardise.fit(values, partial=name == "outputs" and bool(spec.masked_outputs))

        return cls(
            part("coords", train.coords, len(spec.coords)),
            part("inputs", train.inputs, len(spec.inputs)),
            part("outputs", train.targets, len(spec.outputs)),
        )

    @classmethod
    def blank(cls, spec: FieldSpec) -> "Scaler":
        """One that changes nothing, to be filled by `load_state_dict`."""
        return cls(*(Standardise.identity(len(part)) for part in (spec.coords, spec.inputs, spec.outputs)))

    def encode_inputs(self, inputs: Tensor | None) -> Tensor | None:
        return None if inputs is None else self.inputs.encode(inputs)
