"""The numbers behind the pictures of a run: its best, median and worst test case.

Axes: S samples, K cases, N points, C channels, L layers, H heads, M slices.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from linearno.core.atomic_io import write_atomically
from linearno.data import Batch, FieldData
from linearno.inference.bundle import Bundle
from linearno.metrics.slices import attention_rank, most_used
from linearno.nn.protocol import Inspectable, completes
from linearno.training.predict import call_arguments, evaluation_draw


def write_cases(
    path: Path, bundle: Bundle, test: FieldData, predictions: Tensor, errors: Tensor, batch: int = 1
) -> None:
    """Write fields of the best, median and worst case, and the slice maps of the median one.

    A reconstructed field comes with the points that were observed instead; a model that is not `Inspectable`
    has no slice maps. Cases of different sizes stand one after another, with their offsets.
    """
    order = errors.argsort()
    index = order[torch.tensor([0, (len(order) - 1) // 2, -1])]
    case = test.batch(index)
    fields = {
        "coords": case.coords,
        "targets": case.targets,
        "predictions": replace(test, targets=predictions).batch(index).targets,
    }
    if case.inputs is not None:
        fields["inputs"] = case.inputs
    if case.segments is not None:
        fields = {name: part[0] for name, part in fields.items()} | {"offsets": case.segments}
    arrays = {"sample": index, "error": errors[index], **fields}
    if test.spec.grid is not None:
        arrays["grid"] = torch.tensor(test.spec.grid)  # of these data: a run may be evaluated on a finer one
    drawn = [evaluation_draw(bundle.task, test.coords.shape[-2], bundle.seed, int(i) // batch) for i in index]
    observed = [points for points in drawn if points is not None]
    if observed:
        arrays["observed"] = torch.stack(observed)
    elif isinstance(bundle.model, Inspectable) and not completes(bundle.model):
        arrays |= _slice_maps(bundle, test.batch(index[1:2]))
    plain = {name: tensor.cpu().numpy() for name, tensor in arrays.items()}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **plain)

    write_atomically(path, write)


@torch.no_grad()
def _slice_maps(bundle: Bundle, sample: Batch) -> dict[str, Tensor]:
    assert isinstance(bundle.model, Inspectable)
    sample, scaler = bundle.task.call(sample).to(bundle.device), bundle.scaler
    given = call_arguments(bundle.model, scaler, sample._replace(segments=None))
    layers = bundle.model.slice_weights(
        scaler.coords.encode(sample.coords), scaler.encode_inputs(sample.inputs), **given
    )
    maps: dict[str, list[Tensor]] = {}
    slices = 0
    for phi, psi in ((phi[0], psi[0]) for phi, psi in layers):  # H N M
        slices = phi.shape[-1]
        found = {
            "phi_dominant": phi.argmax(dim=-1).to(torch.uint16),
            "psi_dominant": psi.argmax(dim=-1).to(torch.uint16),
            "phi_slice": most_used(phi),
            "psi_slice": most_used(psi),
            "rank": attention_rank(phi, psi),
        }
        for name, tensor in found.items():
            maps.setdefault(name, []).append(tensor)
    if not maps:
        return {}
    return {name: torch.stack(parts) for name, parts in maps.items()} | {"slices": torch.tensor(slices)}
