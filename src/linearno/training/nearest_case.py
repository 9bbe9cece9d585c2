"""Predict the fields of the most similar training sample: the baseline that a model must beat.

Axes: S samples, N points, X coordinates, C channels, D numbers that describe a
sample, V of them vary.
"""

import torch
from jaxtyping import Float, Int
from scipy.spatial import cKDTree
from torch import Tensor

from linearno.data import FieldData

QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)  # of coordinates and inputs over the points of a sample
MIN_DEVIATION = 1e-6  # of a descriptor over the samples, relative to its size: less is rounding


def descriptors(data: FieldData) -> Float[Tensor, "S D"]:
    """Numbers that describe geometry and inputs of each sample: quantiles over its points."""
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    rows = []
    for i in range(len(data)):
        sample = data.batch(torch.tensor([i]))
        parts = [sample.coords] if sample.inputs is None else [sample.coords, sample.inputs]
        points = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts], dim=-1).double()
        rows.append(_quantiles(points, levels).flatten())
    return torch.stack(rows)


def _quantiles(points: Float[Tensor, "N C"], levels: Tensor) -> Tensor:
    """Quantiles of each column; `torch.quantile` refuses more than 2²⁴ points."""
    ordered = points.sort(dim=0).values
    index = (levels * (len(points) - 1)).round().long()
    return ordered[index]


class DescriptorSpace:
    """Distances between samples, in units of the deviation of each descriptor over the training samples.

    Args:
        train: descriptors of the training samples (S, D).
    """

    def __init__(self, train: Float[Tensor, "S D"]):
        self.mean, deviation = train.mean(dim=0), train.std(dim=0, correction=0)
        size = train.abs().amax(dim=0).clamp(min=1e-300)
        self.varies = deviation > MIN_DEVIATION * size
        self.scale = torch.where(self.varies, deviation, size)
        self.train = self.scaled(train)

    def scaled(self, values: Float[Tensor, "S D"]) -> Float[Tensor, "S V"]:
        return ((values - self.mean) / self.scale)[:, self.varies]

    def distances(self, values: Float[Tensor, "S D"]) -> Float[Tensor, "S T"]:
        return torch.cdist(self.scaled(values), self.train)


def nearest_samples(train: FieldData, test: FieldData) -> Int[Tensor, "S"]:
    """The training sample nearest to each test sample, by geometry and inputs."""
    return DescriptorSpace(descriptors(train)).distances(descriptors(test)).argmin(dim=1)


def predict_nearest(train: FieldData, test: FieldData) -> Tensor:
    """Targets of the nearest training sample, in the layout of `test.targets`.

    On other points the value at the nearest point is taken, with coordinates relative to the box of each
    mesh.
    """
    chosen = nearest_samples(train, test)
    if train.shared and test.shared:
        return train.targets[chosen.to(train.targets.device)]
    found = []
    for i, j in enumerate(chosen.tolist()):
        here, there = test.batch(torch.tensor([i])), train.batch(torch.tensor([j]))
        tree = cKDTree(_in_box(there.coords[0]).numpy())
        found.append(there.targets[0][torch.from_numpy(tree.query(_in_box(here.coords[0]).numpy())[1])])
    return torch.cat(found) if test.offsets is not None else torch.stack(found)


def _in_box(points: Float[Tensor, "N X"]) -> Float[Tensor, "N X"]:
    low, high = points.double().amin(dim=0), points.double().amax(dim=0)
    return ((points - low) / (high - low).clamp(min=1e-300)).cpu()
