"""Small sets on grids that follow a body: 3 + 2 airfoils at 45×11, 3 + 2 pipes at 9×9."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from linearno.data import DATASETS, airfoil, pipe
from linearno.data.benchmark import Benchmark, DataConfig, Splits
from linearno.data.generation.generate import DataGenerator
from tests.data.files import make_here, publish

SIZES = {"train": 3, "test": 2}


class Kind(NamedTuple):
    room: ModuleType
    resolution: int
    seed: int
    order: Callable[..., list[np.ndarray]]  # of train, test and two more samples in the published files

    @property
    def name(self) -> str:
        return self.room.FILES.name

    @property
    def generator(self) -> DataGenerator:
        return self.benchmark.generate

    @property
    def benchmark(self) -> Benchmark:
        return DATASETS[self.name]

    def config(self, root: Path, **settings: object) -> DataConfig:
        return self.benchmark.config.make({"root": root, **SIZES, **settings})

    def open(self, root: Path, **settings: object) -> Splits:
        return self.benchmark.open(self.config(root, **settings))

    def verify(self, root: Path) -> list[str]:
        return self.benchmark.verify(root)

    def fill(self, root: Path, generator: DataGenerator | None = None, **settings: object) -> None:
        usual = {"seed": self.seed, "resolution": self.resolution, "sizes": SIZES, "workers": 1}
        (generator or self.generator)(root, **usual | {"tick": lambda n: None} | settings)

    def make(self, root: Path, device: str = "cpu") -> Path:
        plan = {"sizes": SIZES, "resolution": self.resolution, "seed": self.seed, "device": device}
        return make_here(self.generator, root, **plan)

    def publish(self, made: Path, root: Path) -> Path:
        """The samples of a set under the published names, in float64, with two more."""
        return publish(made, self.room.FILES.published, root, self.order)


AIRFOILS = Kind(airfoil, 45, 1, lambda train, test: [train, test, test[::-1]])
PIPES = Kind(pipe, 9, 0, lambda train, test: [train, test[::-1], test])
