"""A benchmark in one file, with a loss and a metric: the displacement of a loaded string.

python examples/own_benchmark.py                                    a quarter of a minute on two cores
linearno train string/linearno --import examples/own_benchmark.py   the same from the command line
"""

from pathlib import Path
from typing import Literal

import torch

from linearno.core.config import override
from linearno.data import DATASETS, Benchmark, DataConfig, FieldData, FieldSpec, Splits, relative_l2
from linearno.experiment import run
from linearno.recipes import recipe

SCALED = ("coords", "inputs", "outputs")  # with mean and deviation of the training split
SPEC = FieldSpec(coords=("x",), inputs=("load",), outputs=("displacement",), standardised=SCALED)


class StringConfig(DataConfig):
    name: Literal["string"] = "string"
    root: Path = Path("data/string")  # not read: the samples have a closed form
    train: int = 256
    test: int = 64


def open_string(config: StringConfig) -> Splits:
    x, k = torch.linspace(0, 1, 64)[:, None], torch.pi * torch.arange(1, 4)

    def split(samples: int, seed: int) -> FieldData:
        amplitudes = torch.randn(samples, 3, generator=torch.Generator().manual_seed(seed))
        load, displacement = amplitudes @ torch.sin(k * x).T, (amplitudes / k**2) @ torch.sin(k * x).T
        return FieldData(SPEC, x, load[..., None], displacement[..., None])

    return Splits(split(config.train, seed=0), split(config.test, seed=1), "closed form")


def slope_loss(prediction, batch):
    """Relative L2 of displacements and, with weight 0.1, of their differences: one value per sample."""
    slopes = batch._replace(targets=batch.targets.diff(dim=1))
    return relative_l2(prediction, batch) + 0.1 * relative_l2(prediction.diff(dim=1), slopes)


def peak_error(prediction, batch):
    """Relative error of the largest displacement: one value per sample."""
    predicted, true = prediction.abs().amax(dim=(1, 2)), batch.targets.abs().amax(dim=(1, 2))
    return (predicted - true).abs() / true


DATASETS.register("string")(
    Benchmark(
        summary="A loaded string: load → displacement",
        config=StringConfig,
        open=open_string,
        verify=lambda root: [],
        protocol={"epochs": 20, "batch": 4, "lr": 5e-3, "schedule": "cosine", "loss": {"kind": "benchmark"}},
        loss=slope_loss,
        metrics={"relative_l2": relative_l2, "peak_error": peak_error},
        models={"linearno": {"width": 64, "depth": 2, "heads": 4, "slices": 8}},
    )
)


def main(out: Path = Path("runs/string-linearno"), epochs: int = 20) -> None:
    config = override(recipe("string", "linearno"), [f"training.epochs={epochs}"])
    metrics = run(config, out, torch.device("cpu"))
    for name in ("relative_l2", "peak_error"):
        print(f"{name}: {metrics[name]['mean']:.3f}   (mean field: {metrics['mean_field'][name]:.3f})")


if __name__ == "__main__":
    main()
