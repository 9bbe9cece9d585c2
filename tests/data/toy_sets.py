"""Sets that cost nothing to make."""

from pathlib import Path

import numpy as np

from linearno.data.generation.generate import Recipe, generate
from linearno.data.generation.plan import Plan

SIZES = {"train": 4, "test": 2}


def make(rng: np.random.Generator, resolution: int) -> dict[str, np.ndarray]:
    return {"u": rng.standard_normal(resolution)}


def toy(make=make) -> Recipe:
    return Recipe("toy", "u = noise", "none", {"u": "m"}, make, lambda n: {"u": (n,)})


def fill(
    root: Path, *, recipe: Recipe | None = None, seed=0, resolution=5, sizes=SIZES, device="cpu"
) -> list[int]:
    ticks: list[int] = []
    plan = Plan(seed=seed, resolution=resolution, sizes=sizes)
    generate(recipe or toy(), root, plan, workers=1, tick=ticks.append, device=device)
    return ticks


def interrupted_after(count: int, error: BaseException | type[BaseException] = KeyboardInterrupt) -> Recipe:
    calls = iter(range(count))

    def stop(rng, resolution):
        if next(calls, None) is None:
            raise error
        return make(rng, resolution)

    return toy(stop)
