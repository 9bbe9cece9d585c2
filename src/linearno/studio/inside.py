"""Slice weights of a run on a design. Axes: L layers, H heads, N points, M slices."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Integer
from numpy import ndarray
from torch import Tensor

from linearno.core.errors import UserError
from linearno.data import Batch
from linearno.example_predictions import attention_rank
from linearno.nn.protocol import Inspectable, completes, model_name
from linearno.studio.designs import Design, SampleDesign
from linearno.studio.runs import StudioRun
from linearno.training.predict import model_call

MAX_BYTES = 10**9  # of all weights


class SliceInspector:
    """φ and ψ of every layer and head of a model, on one design.

    Args:
        run: the run; its model must be `Inspectable`.
        design: the design.
    """

    def __init__(self, run: StudioRun, design: Design):
        self.layers: list[tuple[Tensor, Tensor]] = list(_weights(run, design))
        self.heads = self.layers[0][0].shape[0]
        self.slices = self.layers[0][0].shape[-1]

    def phi_at(self, layer: int, head: int, point: int) -> Float[ndarray, "M"]:
        """Weights with which a point is read from each slice."""
        return self.layers[layer][0][head, point].numpy()

    def map(self, kind: str, layer: int, head: int, slice_: int) -> Float[ndarray, "N"]:
        """φ ("scatter") or ψ ("gather") of a slice at all points, relative to its largest value."""
        weights = self.layers[layer][0 if kind == "scatter" else 1][head, :, slice_].numpy()
        return weights / max(float(weights.max()), 1e-30)

    def ranks(self) -> Integer[ndarray, "L H"]:
        """Numerical rank of the attention kernel φψᵀ."""
        return np.stack([attention_rank(phi, psi).numpy() for phi, psi in self.layers])


def _weights(run: StudioRun, design: Design) -> Sequence[tuple[Tensor, Tensor]]:
    bundle = run.bundle
    if bundle is None:
        raise UserError(run.training or "this run has no model yet")
    if not isinstance(bundle.model, Inspectable) or completes(bundle.model):
        raise UserError(f"{model_name(bundle.model)} has no slices to show")
    found, size = [], 0
    with torch.no_grad():
        arguments, keywords = model_call(bundle.model, bundle.scaler, _sample(run, design))
        for phi, psi in bundle.model.slice_weights(*arguments, **keywords):
            size += 2 * phi.numel() * phi.element_size()
            if size > MAX_BYTES:
                raise UserError(f"the slice weights of this mesh take more than {MAX_BYTES // 10**9} GB")
            found.append((phi[0].float().cpu(), psi[0].float().cpu()))
    return found


def _sample(run: StudioRun, design: Design) -> Batch:
    """One model call for the design, in physical units."""
    assert run.bundle is not None
    bundle = run.bundle
    if isinstance(design, SampleDesign):
        return bundle.task.probe_batch(design.sample().everything())._replace(segments=None).to(bundle.device)
    inputs, coords = design.inputs(), torch.from_numpy(design.coords())[None]
    targets = coords.new_zeros(1, coords.shape[1], len(bundle.spec.outputs))
    batch = Batch(coords, None if inputs is None else torch.from_numpy(inputs)[None], targets)
    return bundle.task.probe_batch(batch).to(bundle.device)
