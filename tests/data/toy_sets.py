"""Sets that cost nothing to generate."""

from pathlib import Path

import numpy as np

from linearno.data.generation.generate import DataGenerator

SIZES = {"train": 4, "test": 2}


def make(rng: np.random.Generator, resolution: int) -> dict[str, np.ndarray]:
    return {"u": rng.standard_normal(resolution)}


def toy(make=make) -> DataGenerator:
    return DataGenerator("toy", "u = noise", "none", {"u": "m"}, lambda n: {"u": (n,)}, make)


def fill(
    root: Path, *, generator: DataGenerator | None = None, seed=0, resolution=5, sizes=SIZES, **settings
) -> list[int]:
    ticks: list[int] = []
    usual = {"workers": 1, "tick": ticks.append} | settings
    (generator or toy())(root, seed=seed, resolution=resolution, sizes=sizes, **usual)
    return ticks


def interrupted_after(
    count: int, error: BaseException | type[BaseException] = KeyboardInterrupt
) -> DataGenerator:
    calls = iter(range(count))

    def stop(rng, resolution):
        if next(calls, None) is None:
            raise error
        return make(rng, resolution)

    return toy(stop)
