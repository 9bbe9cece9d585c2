"""Example predictions of a run for its figures: the best, median and worst test sample.

Axes: S samples, K examples, N points, C channels, L layers, H heads, M slices.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from linearno.core.atomic_io import write_atomically
from linearno.data import Batch, FieldData
from linearno.inference.bundle import Bundle
from linearno.nn.protocol import Inspectable, completes
from linearno.training.predict import evaluation_draw, model_call

Weights = Float[Tensor, "H N M"]


def write_examples(
    path: Path,
    bundle: Bundle,
    test: FieldData,
    predictions: Tensor,
    errors: Tensor,
    batch: int = 1,
    *,
    cells: Callable[[Sequence[int]], Sequence[ndarray]] | None = None,
) -> None:
    """Write the fields of the best, median and worst sample, and the slice maps of the median sample.

    A field reconstruction gets its observed points instead of slice maps; slice maps need a model that is
    `Inspectable`. Meshes of different sizes are concatenated, with their offsets.

    Args:
        path: .npz file to write.
        bundle: the surrogate.
        test: all test samples.
        predictions: predictions for all test samples, in the layout of the targets.
        errors: (S,) errors by which samples are ranked.
        batch: samples per batch of the evaluation, which determines the observed points.
        cells: quadrilaterals or triangles of test samples, for figures on their meshes.
    """
    order = errors.argsort()
    index = order[torch.tensor([0, (len(order) - 1) // 2, -1])]
    examples = test.batch(index)
    fields = {
        "coords": examples.coords,
        "targets": examples.targets,
        "predictions": replace(test, targets=predictions).batch(index).targets,
    }
    if examples.inputs is not None:
        fields["inputs"] = examples.inputs
    if examples.segments is not None:
        fields = {name: part[0] for name, part in fields.items()} | {"offsets": examples.segments}
    arrays = {"sample": index, "error": errors[index], **fields}
    if test.spec.grid is not None:
        arrays["grid"] = torch.tensor(test.spec.grid)  # may be finer than the grid of training
    draws = [evaluation_draw(bundle.task, test.coords.shape[-2], bundle.seed, int(i) // batch) for i in index]
    observed = [points for points in draws if points is not None]
    if observed:
        arrays["observed"] = torch.stack(observed)
    elif isinstance(bundle.model, Inspectable) and not completes(bundle.model):
        arrays |= _slice_maps(bundle, test.batch(index[1:2]))
    plain = {name: tensor.cpu().numpy() for name, tensor in arrays.items()}
    if cells is not None:
        meshes = cells(index.tolist())
        plain |= {"cells": np.concatenate(meshes), "cell_offsets": np.cumsum([0, *map(len, meshes)])}
    _write_arrays(path, plain)


def write_test_set(path: Path, values: Mapping[str, ndarray]) -> None:
    """Write values (S,) of all test samples for figures."""
    _write_arrays(path, values)


def _write_arrays(path: Path, arrays: Mapping[str, ndarray]) -> None:
    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    write_atomically(path, write)


@torch.no_grad()
def _slice_maps(bundle: Bundle, sample: Batch) -> dict[str, Tensor]:
    """Dominant slice and weight of the most used slice (L, H, N), and rank of the kernel (L, H)."""
    assert isinstance(bundle.model, Inspectable)
    sample = bundle.task.probe_batch(sample)._replace(segments=None).to(bundle.device)
    arguments, keywords = model_call(bundle.model, bundle.scaler, sample)
    maps: dict[str, list[Tensor]] = defaultdict(list)
    for phis, psis in bundle.model.slice_weights(*arguments, **keywords):
        phi, psi = phis[0], psis[0]  # H N M
        maps["phi_dominant"].append(phi.argmax(dim=-1).to(torch.uint16))
        maps["psi_dominant"].append(psi.argmax(dim=-1).to(torch.uint16))
        maps["phi_slice"].append(most_used_slice(phi))
        maps["psi_slice"].append(most_used_slice(psi))
        maps["rank"].append(attention_rank(phi, psi))
    stacked = {name: torch.stack(parts) for name, parts in maps.items()}
    return stacked | {"slices": torch.tensor(phi.shape[-1])} if stacked else {}


def attention_rank(phi: Weights, psi: Weights) -> Int[Tensor, "H"]:
    """Numerical rank of φψᵀ in each head, at most M; singular values below N ε of the largest count as zero.

    The N×N kernel is never formed: with φ = Q₁R₁ and ψ = Q₂R₂ its singular values are those of R₁R₂ᵀ.
    """
    tolerance = phi.shape[-2] * torch.finfo(phi.dtype).eps
    small = torch.linalg.qr(phi.double(), mode="r").R @ torch.linalg.qr(psi.double(), mode="r").R.mT
    singular = torch.linalg.svdvals(small)
    return (singular > tolerance * singular[..., :1]).sum(dim=-1)


def most_used_slice(weights: Weights) -> Float[Tensor, "H N"]:
    """Weights at the points of the slice with the largest total weight in each head."""
    best = weights.sum(dim=-2).argmax(dim=-1)
    return weights.take_along_dim(best[:, None, None], dim=-1).squeeze(-1)
