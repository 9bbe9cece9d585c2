"""Make a dataset folder with a solver, on a CPU by processes or on a GPU in batches; resumable."""

import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from dataclasses import field as default
from functools import partial
from math import prod
from pathlib import Path
from time import monotonic
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import NonNegativeInt, PositiveInt

from linearno.core.artifacts import alone_in, read_json, writable_folder, write_json
from linearno.core.config import Config
from linearno.core.device import describe, resolve_device
from linearno.core.errors import SampleError, UserError, did_you_mean
from linearno.core.randomness import numpy_generator
from linearno.data.benchmark import Generate
from linearno.data.card import CARD, Card, array_name, read_card, write_card
from linearno.data.workers import in_order

PROGRESS = "progress.json"
RECORD_EVERY = 1.0  # seconds between two records of progress
Split = Literal["train", "test", "val"]
SPLITS: tuple[Split, ...] = ("train", "test", "val")  # a place here is a place in the random stream
Job = tuple[Split, int]  # a sample's split and its index there
Make = Callable[[np.random.Generator, int], dict[str, ndarray]]
MakeBatch = Callable[..., dict[str, ndarray]]  # of generators, resolution, device[, scheme]


def one_at_a_time(resolution: int, device: torch.device) -> int:
    return 1


def batch_that_fits(device: torch.device, sample_bytes: int, *, most: int = 128) -> int:
    """How many samples to solve at once, a power of two.

    One on a CPU, whose caches hold no more; on a GPU what half of its free memory holds, `most` at most.
    """
    if device.type == "cpu":
        return 1
    free, _ = torch.cuda.mem_get_info(device)
    return 2 ** (max(1, min(most, free // 2 // sample_bytes)).bit_length() - 1)


@dataclass(frozen=True)
class Recipe:
    """How a benchmark's samples are made, by functions of a module, so that they can be pickled.

    `make(rng, resolution)` gives the fields of one sample, on the CPU. `make_batch(rngs, resolution, device)`
    gives them for several, stacked, on any device, and is preferred where both are there. It draws from each
    sample's own generator, so that inputs are the same on every device; a sample does not depend on the
    others of its batch; what is wrong with one of them is a `SampleError`. Where the solver has `schemes`,
    `make_batch` gets the name of the chosen one as `scheme`.
    """

    name: str
    equation: str
    solver: str
    units: dict[str, str]  # field → unit
    make: Make | None
    shapes: Callable[[int], dict[str, tuple[int, ...]]]  # resolution → shape of each field
    make_batch: MakeBatch | None = None
    batch_size: Callable[[int, torch.device], int] = one_at_a_time  # for a resolution on a device
    schemes: dict[str, str] = default(default_factory=dict)  # name → words; the first is the default


class Plan(Config):
    """What is to be made. The same plan gives the same bytes; a larger one begins with the same samples."""

    seed: NonNegativeInt
    resolution: PositiveInt
    sizes: dict[Split, PositiveInt]
    scheme: str | None = None  # of the solver; its own by default

    def __str__(self) -> str:
        sizes = ", ".join(f"{split} {count}" for split, count in self.sizes.items())
        scheme = f", scheme {self.scheme}" if self.scheme else ""
        return f"seed {self.seed}, resolution {self.resolution}, {sizes}{scheme}"

    @property
    def jobs(self) -> list[Job]:
        """Every sample, in the order in which they are made."""
        return [(split, i) for split in SPLITS if split in self.sizes for i in range(self.sizes[split])]


class Progress(Config):
    """The record of an unfinished folder: the first `done` jobs of the plan are on disk."""

    plan: Plan
    done: int
    device: str = "cpu"


def generate(
    recipe: Recipe,
    root: Path,
    plan: Plan,
    *,
    workers: int,
    tick: Callable[[int], None],
    device: str = "cpu",
) -> None:
    """Fill `root` with `{split}_{field}.npy` and a card; go on where an interrupted call stopped.

    `tick(n)` is called as samples are done, at once for those that were there before, and never when the
    folder is already complete, whichever device made it. Arrays grow as `.npy.part` and get their names only
    when all samples are in. `auto` is a GPU where there is one and the recipe batches; a CPU has `workers`
    processes. Workers import the main module: a script that calls this needs `if __name__ == "__main__":`.
    """
    if workers < 1:
        raise UserError(f"workers={workers}: expected at least 1")
    plan = _with_scheme(recipe, plan)
    shapes, place = recipe.shapes(plan.resolution), _place(recipe, device)
    with alone_in(writable_folder(root)):
        if (root / CARD).exists():
            return _require_same(root, recipe, plan)
        start = Progress(plan=plan, done=0, device=_words(place))
        progress = _begin_or_resume(root, start, shapes)
        if progress.done:
            tick(progress.done)
        size, jobs = recipe.batch_size(plan.resolution, place), plan.jobs
        batches = [jobs[i : i + size] for i in range(progress.done, len(jobs), size)]
        work = partial(_make, _batched(recipe, plan), root, plan, place)
        on_cpu = place.type == "cpu"
        finished = in_order(work, batches, workers) if on_cpu else (work(batch) for batch in batches)
        _fill(root, progress, finished, tick)
        _finish(recipe, root, start, list(shapes))


def generator(recipe: Recipe) -> Generate:
    """What a benchmark offers to make its files: `generate` with this recipe."""

    def generate_set(
        root: Path,
        *,
        sizes: dict[str, int],
        resolution: int,
        seed: int,
        workers: int,
        tick: Callable[[int], None],
        device: str = "cpu",
        scheme: str | None = None,
    ) -> None:
        plan = Plan.make({"seed": seed, "resolution": resolution, "sizes": sizes, "scheme": scheme})
        generate(recipe, root, plan, workers=workers, tick=tick, device=device)

    return generate_set


def _with_scheme(recipe: Recipe, plan: Plan) -> Plan:
    """The plan with the recipe's usual scheme where it names none."""
    if plan.scheme is None:
        return plan.model_copy(update={"scheme": next(iter(recipe.schemes), None)})
    if not recipe.schemes:
        raise UserError(f"the solver of {recipe.name} has one scheme only; leave out --scheme")
    if plan.scheme not in recipe.schemes:
        near = did_you_mean(plan.scheme, recipe.schemes)
        raise UserError(f"the solver of {recipe.name} has no scheme {plan.scheme!r}; {near}")
    return plan


def _place(recipe: Recipe, name: str) -> torch.device:
    """The device of that name, if the recipe can use it; `auto` is never one that it cannot."""
    device = resolve_device("cpu" if name == "auto" and recipe.make_batch is None else name)
    if device.type != "cpu" and recipe.make_batch is None:
        raise UserError(f"the solver of {recipe.name} runs on the CPU only; use --device cpu or auto")
    return device


def _words(device: torch.device) -> str:
    """The device as the card names it; the number of threads is nothing to a set."""
    return "cpu" if device.type == "cpu" else describe(device)


def begun(root: Path) -> Progress | None:
    """The plan of the set in `root` and how much of it is done, if there is one, finished or not."""
    try:
        if (root / CARD).exists():
            card = read_card(root, how="remove the folder and generate again")
            plan = _plan_of(card)
            return Progress(plan=plan, done=len(plan.jobs), device=card.device)
        return _read_progress(root) if (root / PROGRESS).exists() else None
    except OSError as error:
        raise UserError(f"cannot read what is in {root}: {error.strerror}; choose another folder") from None


def _plan_of(card: Card) -> Plan:
    return Plan.make(card.model_dump(include=set(Plan.model_fields)))


def unfinished(root: Path) -> str | None:
    """A clause about a generation that was interrupted in `root`, if there was one."""
    if (root / CARD).exists() or (progress := begun(root)) is None:
        return None
    return f"its generation stopped after {progress.done} of {len(progress.plan.jobs)} samples"


def _require_same(root: Path, recipe: Recipe, plan: Plan) -> None:
    card = read_card(root, how="remove the folder and generate again")
    there = _plan_of(card)
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


def _begin_or_resume(root: Path, start: Progress, shapes: dict[str, tuple[int, ...]]) -> Progress:
    """`start`, or how far an earlier call came, after the arrays have been made or found."""
    arrays = {
        root / array_name(split, field): (count, *shape)
        for split, count in start.plan.sizes.items()
        for field, shape in shapes.items()
    }
    if (root / PROGRESS).exists():
        progress = _read_progress(root)
        if progress.plan != start.plan:
            raise UserError(f"{root} was begun with {progress.plan}; go on with these or remove the folder")
        if progress.device != start.device:
            raise UserError(
                f"{root} was begun on {progress.device}, and this is {start.device}: their numbers agree to "
                "rounding only; go on there (see --device) or remove the folder"
            )
        if not all(_part(path).exists() or path.exists() for path in arrays):
            raise UserError(f"{root} has lost files of an unfinished set; remove the folder and begin again")
        return progress
    taken = [path for path in arrays if path.exists()]
    if taken:
        raise UserError(f"{taken[0]} exists but no {CARD} says what it is; move it or choose another folder")
    _require_space(root, 4 * sum(prod(shape) for shape in arrays.values()))
    for path, shape in arrays.items():
        _reserve(_part(path), shape)
    write_json(root / PROGRESS, start.model_dump(mode="json"))
    return start


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
    root: Path, progress: Progress, finished: Generator[int, None, None], tick: Callable[[int], None]
) -> None:
    """Count the batches as they come; what is recorded as done has reached the disk."""

    def record() -> None:
        for path in root.glob("*.npy.part"):
            with path.open("r+b") as file:
                os.fsync(file.fileno())
        write_json(root / PROGRESS, progress.model_dump(mode="json"))

    recorded = monotonic()
    with closing(finished):
        try:
            for count in finished:
                progress = progress.model_copy(update={"done": progress.done + count})
                tick(count)
                if monotonic() - recorded > RECORD_EVERY:
                    record()
                    recorded = monotonic()
        finally:
            record()


def _batched(recipe: Recipe, plan: Plan) -> MakeBatch:
    if recipe.make_batch:
        return partial(recipe.make_batch, scheme=plan.scheme) if plan.scheme else recipe.make_batch
    assert recipe.make, f"recipe {recipe.name} has neither make nor make_batch"
    return partial(_make_one, recipe.make)


def _make_one(
    make: Make, rngs: Sequence[np.random.Generator], resolution: int, device: torch.device
) -> dict[str, ndarray]:
    """A batch of one."""
    (rng,) = rngs
    return {field: values[None] for field, values in make(rng, resolution).items()}


def _make(make: MakeBatch, root: Path, plan: Plan, device: torch.device, batch: list[Job]) -> int:
    """Some samples, each from its own random stream to its own place on disk; how many they are."""
    rngs = [numpy_generator(plan.seed, SPLITS.index(split), index) for split, index in batch]
    try:
        fields = make(rngs, plan.resolution, device)
    except SampleError as error:
        raise UserError(f"{_name(batch, error.index)}: {error.message}") from None
    except UserError as error:
        raise UserError(f"{_name(batch)}: {error}") from None
    except torch.OutOfMemoryError:
        raise UserError(
            f"{_name(batch)}: {describe(device)} has too little free memory to solve {len(batch)} at once; "
            "wait until others leave it, or use --device cpu"
        ) from None
    for field, stack in fields.items():
        for job, values in zip(batch, stack, strict=True):
            if not np.isfinite(values).all():
                raise UserError(f"{_name([job])}: the solver gave NaN or infinite values for {field}")
            array = np.lib.format.open_memmap(_part(root / array_name(job[0], field)), mode="r+")
            array[job[1]] = values
    return len(batch)


def _name(batch: list[Job], index: int | None = None) -> str:
    """The sample at `index`, or the whole batch, in words."""
    names = [f"{split} sample {number}" for split, number in batch]
    if index is not None:
        return names[index]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _finish(recipe: Recipe, root: Path, start: Progress, fields: list[str]) -> None:
    """Names first, then the card, then the record goes: each step can be taken again after a stop."""
    names = [array_name(split, field) for split in start.plan.sizes for field in fields]
    for name in names:
        if _part(root / name).exists():
            os.replace(_part(root / name), root / name)
    scheme = start.plan.scheme
    solver = f"{recipe.solver}; {recipe.schemes[scheme]}" if scheme else recipe.solver
    facts = {"name": recipe.name, "equation": recipe.equation, "solver": solver, "units": recipe.units}
    write_card(root, names, {**facts, **start.plan.model_dump(), "device": start.device})
    (root / PROGRESS).unlink(missing_ok=True)
