"""Make a dataset folder with a solver: in parallel, to the same bytes whatever the workers, resumable."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from time import monotonic
from typing import Literal

import numpy as np
from numpy import ndarray
from pydantic import NonNegativeInt, PositiveInt

from linearno.core.artifacts import read_json, writable_folder, write_json
from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.core.randomness import numpy_generator
from linearno.data.card import CARD, array_name, read_card, write_card
from linearno.data.workers import in_order

PROGRESS = "progress.json"
RECORD_EVERY = 1.0  # seconds between two records of progress
Split = Literal["train", "test", "val"]
SPLITS: tuple[Split, ...] = ("train", "test", "val")  # a place here is a place in the random stream
Make = Callable[[np.random.Generator, int], dict[str, ndarray]]


@dataclass(frozen=True)
class Recipe:
    """How a benchmark's samples are made. `make` is a function of a module, so that it can be pickled."""

    name: str
    equation: str
    solver: str
    units: dict[str, str]  # field → unit
    make: Make
    shapes: Callable[[int], dict[str, tuple[int, ...]]]  # resolution → shape of each field


class Plan(Config):
    """What is to be made. The same plan gives the same bytes; a larger one begins with the same samples."""

    seed: NonNegativeInt
    resolution: PositiveInt
    sizes: dict[Split, PositiveInt]

    def __str__(self) -> str:
        sizes = ", ".join(f"{split} {count}" for split, count in self.sizes.items())
        return f"seed {self.seed}, resolution {self.resolution}, {sizes}"

    @property
    def jobs(self) -> list[tuple[Split, int]]:
        """(split, index) of every sample, in the order in which they are made."""
        return [(split, i) for split in SPLITS if split in self.sizes for i in range(self.sizes[split])]


class Progress(Config):
    """The record of an unfinished folder: the first `done` jobs of the plan are on disk."""

    plan: Plan
    done: int


def generate(recipe: Recipe, root: Path, plan: Plan, *, workers: int, tick: Callable[[int], None]) -> None:
    """Fill `root` with `{split}_{field}.npy` and a card; go on where an interrupted call stopped.

    `tick(n)` is called as samples are done, at once for those that were there before, and never when the
    folder is already complete. Arrays grow as `.npy.part` and get their names only when all samples are in.
    Workers import the main module: a script that calls this needs `if __name__ == "__main__":`.
    """
    if workers < 1:
        raise UserError(f"workers={workers}: expected at least 1")
    shapes = recipe.shapes(plan.resolution)
    with _alone_in(writable_folder(root)):
        if (root / CARD).exists():
            return _require_same(root, recipe, plan)
        done = _begin_or_resume(root, plan, shapes)
        if done:
            tick(done)
        _fill(recipe, root, plan, done, workers, tick)
        _finish(recipe, root, plan, list(shapes))


def unfinished(root: Path) -> str | None:
    """A clause about a generation that was interrupted in `root`, if there was one."""
    if not (root / PROGRESS).exists() or (root / CARD).exists():
        return None
    progress = _read_progress(root)
    return f"its generation stopped after {progress.done} of {len(progress.plan.jobs)} samples"


def _require_same(root: Path, recipe: Recipe, plan: Plan) -> None:
    card = read_card(root, how="remove the folder and generate again")
    there = Plan.make({"seed": card.seed, "resolution": card.resolution, "sizes": card.sizes})
    if (card.name, there) != (recipe.name, plan):
        raise UserError(f"{root} holds another set ({card.name}: {there}); remove it or choose another place")
    missing = [name for name in card.files if not (root / name).exists()]
    if missing:
        raise UserError(f"{root} has a card but not {missing[0]}; remove the folder and generate again")
    (root / PROGRESS).unlink(missing_ok=True)


def _read_progress(root: Path) -> Progress:
    how = "remove the folder and generate again"
    try:
        return Progress.make(read_json(root / PROGRESS, how=how))
    except UserError as error:
        raise UserError(f"{root / PROGRESS} cannot be read ({error}); {how}") from None


def _begin_or_resume(root: Path, plan: Plan, shapes: dict[str, tuple[int, ...]]) -> int:
    """The number of samples already on disk, after the arrays have been made or found."""
    arrays = {
        root / array_name(split, field): (count, *shape)
        for split, count in plan.sizes.items()
        for field, shape in shapes.items()
    }
    if (root / PROGRESS).exists():
        progress = _read_progress(root)
        if progress.plan != plan:
            raise UserError(f"{root} was begun with {progress.plan}; go on with these or remove the folder")
        if not all(_part(path).exists() or path.exists() for path in arrays):
            raise UserError(f"{root} has lost files of an unfinished set; remove the folder and begin again")
        return progress.done
    taken = [path for path in arrays if path.exists()]
    if taken:
        raise UserError(f"{taken[0]} exists but no {CARD} says what it is; move it or choose another folder")
    _require_space(root, 4 * sum(prod(shape) for shape in arrays.values()))
    for path, shape in arrays.items():
        _reserve(_part(path), shape)
    write_json(root / PROGRESS, Progress(plan=plan, done=0).model_dump(mode="json"))
    return 0


def _require_space(root: Path, need: int) -> None:
    free = shutil.disk_usage(root).free
    if free < need:
        raise UserError(
            f"{root} has {free / 1e9:.2f} GB free but the set needs {need / 1e9:.2f} GB; "
            "make room, choose another folder, or ask for fewer samples or a lower resolution"
        )


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _reserve(path: Path, shape: tuple[int, ...]) -> None:
    """An empty array on disk. Its blocks are claimed now, so a disk that fills up later does no harm."""
    try:
        np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape).flush()
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        raise UserError(f"cannot reserve {path}: {error.strerror}; choose another folder") from None


def _fill(
    recipe: Recipe, root: Path, plan: Plan, done: int, workers: int, tick: Callable[[int], None]
) -> None:
    """Make the jobs from `done` on; what is recorded as done has reached the disk."""

    def record() -> None:
        for path in root.glob("*.npy.part"):
            with path.open("r+b") as file:
                os.fsync(file.fileno())
        write_json(root / PROGRESS, Progress(plan=plan, done=done).model_dump(mode="json"))

    work = partial(_make_one, recipe.make, root, plan.seed, plan.resolution)
    recorded = monotonic()
    with closing(in_order(work, plan.jobs[done:], workers)) as finished:
        try:
            for _ in finished:
                done += 1
                tick(1)
                if monotonic() - recorded > RECORD_EVERY:
                    record()
                    recorded = monotonic()
        finally:
            record()


def _make_one(make: Make, root: Path, seed: int, resolution: int, job: tuple[Split, int]) -> None:
    """One sample, from its own random stream to its own place on disk."""
    split, index = job
    try:
        fields = make(numpy_generator(seed, SPLITS.index(split), index), resolution)
    except UserError as error:
        raise UserError(f"{split} sample {index}: {error}") from None
    for field, values in fields.items():
        if not np.isfinite(values).all():
            raise UserError(f"{split} sample {index}: the solver gave NaN or infinite values for {field}")
        array = np.lib.format.open_memmap(_part(root / array_name(split, field)), mode="r+")
        array[index] = values


def _finish(recipe: Recipe, root: Path, plan: Plan, fields: list[str]) -> None:
    """Names first, then the card, then the record goes: each step can be taken again after a stop."""
    names = [array_name(split, field) for split in plan.sizes for field in fields]
    for name in names:
        if _part(root / name).exists():
            os.replace(_part(root / name), root / name)
    facts = {"name": recipe.name, "equation": recipe.equation, "solver": recipe.solver, "units": recipe.units}
    write_card(root, names, {**facts, **plan.model_dump()})
    (root / PROGRESS).unlink(missing_ok=True)


@contextmanager
def _alone_in(root: Path) -> Iterator[None]:
    """Hold the folder: two processes that fill it at once would undo each other's work."""
    try:
        import fcntl
    except ImportError:  # not on this system: the user's own care must do
        yield
        return
    folder = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is filling {root}; wait, or choose another folder") from None
        yield
    finally:
        os.close(folder)
