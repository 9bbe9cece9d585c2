"""Make a dataset folder with a solver, on a CPU by processes or on a GPU in batches; resumable."""

import os
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from dataclasses import field as default
from functools import partial
from math import prod
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from numpy import ndarray

from linearno.core.atomic_io import folder_lock, writable_folder, write_json
from linearno.core.device import device_name, resolve_device
from linearno.core.errors import SampleError, UserError, did_you_mean
from linearno.core.randomness import numpy_generator
from linearno.data.benchmark import Generate
from linearno.data.generation.card import CARD, array_name, write_card
from linearno.data.generation.plan import (
    PROGRESS,
    SPLITS,
    Job,
    Plan,
    Progress,
    read_progress_record,
    require_same,
    require_same_law,
)
from linearno.data.generation.workers import process_map

RECORD_EVERY = 1.0  # seconds between two records of progress
Make = Callable[[np.random.Generator, int], dict[str, ndarray]]
Arrays = dict[Path, tuple[int, ...]]  # the files of a set and the shapes of what they hold
MakeBatch = Callable[..., dict[str, ndarray]]  # of generators, resolution, device[, scheme]
BatchSize = Callable[..., int]  # for a resolution on a device[, scheme]


def one_at_a_time(resolution: int, device: torch.device, *, scheme: str | None = None) -> int:
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
    `make_batch` and `batch_size` get the name of the chosen one as `scheme`.
    """

    name: str
    equation: str
    solver: str
    units: dict[str, str]  # field → unit
    make: Make | None
    shapes: Callable[[int], dict[str, tuple[int, ...]]]  # resolution → shape of each field
    make_batch: MakeBatch | None = None
    batch_size: BatchSize = one_at_a_time
    schemes: dict[str, str] = default(default_factory=dict)  # name → words; the first is the default


class _Unsolvable(UserError):
    """A sample that fails again in each attempt: its random numbers are those of the seed."""


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
    A call that ends before any sample is done leaves nothing behind.
    """
    if workers < 1:
        raise UserError(f"workers={workers}: expected at least 1")
    plan = _with_scheme(recipe, plan)
    shapes, place = recipe.shapes(plan.resolution), _place(recipe, device)
    start = _start(recipe, plan, _words(place))
    with _folder(root):
        if (root / CARD).exists():
            return require_same(root, recipe.name, start)
        arrays = _arrays(root, plan, shapes)
        progress = _begin_or_resume(root, start, arrays)
        with _nothing_half_written(root, arrays):
            if progress.done:
                tick(progress.done)
            size = recipe.batch_size(plan.resolution, place, **_chosen(plan))
            jobs, on_cpu = plan.jobs, place.type == "cpu"
            if on_cpu:  # of few samples each worker has its share
                size = max(1, min(size, -(-(len(jobs) - progress.done) // workers)))
            batches = [jobs[i : i + size] for i in range(progress.done, len(jobs), size)]
            work = partial(_make, _batched(recipe, plan), root, plan, place)
            finished = process_map(work, batches, workers) if on_cpu else (work(batch) for batch in batches)
            _fill(root, progress, finished, tick)
        _finish(recipe, root, start, list(arrays))


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


def _start(recipe: Recipe, plan: Plan, device: str) -> Progress:
    """The record of a set of which nothing is done yet."""
    scheme = f"; {recipe.schemes[plan.scheme]}" if plan.scheme else ""
    law = {"equation": recipe.equation, "solver": recipe.solver + scheme}
    return Progress(plan=plan, done=0, device=device, **law)


@contextmanager
def _folder(root: Path) -> Iterator[None]:
    """Hold `root`, made if need be; after an error, folders that were made here and are empty go again."""
    new = [path for path in (root, *root.parents) if not os.path.exists(path)]
    with folder_lock(writable_folder(root)):
        try:
            yield
        except BaseException:
            with suppress(OSError):  # it holds something
                for path in new:
                    path.rmdir()
            raise


def _place(recipe: Recipe, name: str) -> torch.device:
    """The device of that name, if the recipe can use it; `auto` is never one that it cannot."""
    device = resolve_device("cpu" if name == "auto" and recipe.make_batch is None else name)
    if device.type != "cpu" and recipe.make_batch is None:
        raise UserError(f"the solver of {recipe.name} runs on the CPU only; use --device cpu or auto")
    return device


def _words(device: torch.device) -> str:
    """The device as the card names it; the number of threads is nothing to a set."""
    return "cpu" if device.type == "cpu" else device_name(device)


def _arrays(root: Path, plan: Plan, shapes: dict[str, tuple[int, ...]]) -> Arrays:
    return {
        root / array_name(split, field): (count, *shape)
        for split, count in plan.sizes.items()
        for field, shape in shapes.items()
    }


def _begin_or_resume(root: Path, start: Progress, arrays: Arrays) -> Progress:
    """`start`, or how far an earlier call came, after the arrays have been made or found."""
    if (root / PROGRESS).exists():
        return _resume(root, start, arrays)
    taken = [path for path in arrays if path.exists()]
    if taken:
        raise UserError(f"{taken[0]} exists but no {CARD} says what it is; move it or choose another folder")
    _require_space(root, 4 * sum(prod(shape) for shape in arrays.values()))
    with _nothing_half_written(root, arrays):
        for path, shape in arrays.items():
            _reserve(_part(path), shape)
        write_json(root / PROGRESS, start.model_dump(mode="json"))
    return start


def _resume(root: Path, start: Progress, arrays: Arrays) -> Progress:
    """How far an earlier call came that began as this one."""
    progress = read_progress_record(root)
    if progress.plan != start.plan:
        raise UserError(f"{root} was begun with {progress.plan}; go on with these or remove the folder")
    require_same_law(root, progress, start)
    if progress.device != start.device:
        raise UserError(
            f"{root} was begun on {progress.device}, and this is {start.device}: their numbers agree to "
            "rounding only; go on there (see --device) or remove the folder"
        )
    if not all(_part(path).exists() or path.exists() for path in arrays):
        raise UserError(f"{root} has lost files of an unfinished set; remove the folder and begin again")
    return progress


@contextmanager
def _nothing_half_written(root: Path, arrays: Arrays) -> Iterator[None]:
    """After an error, what was reserved goes unless samples are recorded in it: there is nothing to go on
    with. The record goes first, so that a stop in between leaves no record without its arrays."""
    try:
        yield
    except BaseException as error:
        kept = (root / PROGRESS).exists() and read_progress_record(root).done > 0
        if not kept:
            with suppress(OSError):  # the first error is the one to tell
                for path in (root / PROGRESS, *map(_part, arrays)):
                    path.unlink(missing_ok=True)
        if not isinstance(error, _Unsolvable):
            raise
        where = f"what was made before it stays in {root}: another --seed with another --out"
        raise UserError(f"{error}; {where if kept else 'another --seed'} draws others") from None


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


def _chosen(plan: Plan) -> dict[str, str]:
    """The scheme as an argument, where there are several."""
    return {"scheme": plan.scheme} if plan.scheme else {}


def _batched(recipe: Recipe, plan: Plan) -> MakeBatch:
    if recipe.make_batch:
        return partial(recipe.make_batch, **_chosen(plan))
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
        raise _Unsolvable(f"{_name(batch, error.index)}: {error.message}") from None
    except UserError as error:
        raise _Unsolvable(f"{_name(batch)}: {error}") from None
    except torch.OutOfMemoryError:
        raise UserError(
            f"{_name(batch)}: {device_name(device)} has too little memory to solve {len(batch)} at once; "
            "wait until others leave it, or use --device cpu"
        ) from None
    for field, stack in fields.items():
        for job, values in zip(batch, stack, strict=True):
            if not np.isfinite(values).all():
                raise _Unsolvable(f"{_name([job])}: the solver gave NaN or infinite values for {field}")
            array = np.lib.format.open_memmap(_part(root / array_name(job[0], field)), mode="r+")
            array[job[1]] = values
    return len(batch)


def _name(batch: list[Job], index: int | None = None) -> str:
    """The sample at `index`, or the whole batch, in words."""
    names = [f"{split} sample {number}" for split, number in batch]
    if index is not None:
        return names[index]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _finish(recipe: Recipe, root: Path, start: Progress, arrays: Sequence[Path]) -> None:
    """Names first, then the card, then the record goes: each step can be taken again after a stop."""
    for path in arrays:
        if _part(path).exists():
            os.replace(_part(path), path)
    facts = {"name": recipe.name, "units": recipe.units, **start.plan.model_dump()}
    law = start.model_dump(include={"equation", "solver", "device"})
    write_card(root, [path.name for path in arrays], facts | law)
    (root / PROGRESS).unlink(missing_ok=True)
