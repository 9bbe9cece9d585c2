"""A small network on a few meshes of different sizes."""

from pathlib import Path

import torch
from tiny_run import checked_setup

from linearno import LinearNO
from linearno.data import Batch, FieldData, FieldSpec, Scaler
from linearno.training import LossConfig, Task, TrainingConfig, fit

SPEC = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",), standardised=("inputs", "outputs"))
SIZES = (5, 31, 1, 12, 9, 70, 3, 22, 14, 8, 17)
SOME = TrainingConfig(  # 9 meshes to train on: steps of 4, 4 and 1
    epochs=3, batch=2, accumulate=2, lr=3e-3, ema=0.9, validation=2, points=8, keep_surface=True
)


def mesh(points: int, generator: torch.Generator, kind=torch.float32) -> Batch:
    """u = 3 + a² x at random points."""
    coords, inputs = (torch.rand(points, c, generator=generator, dtype=kind) for c in (2, 1))
    return Batch(coords, inputs, 3 + inputs.square() * coords[:, :1])


def packed_data(sizes=SIZES, kind=torch.float32) -> FieldData:
    generator = torch.Generator().manual_seed(1)
    samples = [mesh(size, generator, kind) for size in sizes]
    return FieldData.pack(SPEC, samples, [sample.coords[:, 0] < 0.3 for sample in samples])


def network(seed: int = 0, **settings) -> LinearNO:
    torch.manual_seed(seed)
    return LinearNO(coords=2, inputs=1, outputs=1, width=8, depth=1, heads=2, slices=3, **settings)


def packed_fit(folder: Path, config: TrainingConfig = SOME, *, model=None, data=None, **options) -> LinearNO:
    model, data = model or network(), data or packed_data()
    scaler = options.pop("scaler", None) or Scaler.fit(SPEC, data.everything())
    task = options.pop("task", Task())
    task.require_packed(data)
    setup = checked_setup(model, scaler.to(data.targets.dtype), data, config, seed=7, task=task)
    settings = {"device": torch.device("cpu"), "fingerprint": config.model_dump_json()} | options
    fit(setup, folder=folder, **settings)
    return model


MEAN = LossConfig(reduction="mean")
