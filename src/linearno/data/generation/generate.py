"""Generate a data set with a solver, resumable, with processes on a CPU or batches on a GPU."""

import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil, prod
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from numpy import ndarray

from linearno.core.atomic_io import folder_lock, writable_folder, write_json
from linearno.core.device import device_name, resolve_device
from linearno.core.errors import SampleError, UserError, did_you_mean
from linearno.core.randomness import numpy_generator
from linearno.data.generation.card import CARD, array_name, write_card
from linearno.data.generation.plan import (
    PROGRESS,
    SPLITS,
    Job,
    Plan,
    Progress,
    read_progress_record,
    require_same,
    require_same_equations,
)
from linearno.data.generation.workers import process_map

RECORD_SECONDS = 1.0  # between writes of the progress record
Fields = dict[str, ndarray]
Make = Callable[[np.random.Generator, int], Fields]
MakeBatch = Callable[..., Fields]
MapBatches = Callable[[Callable[[list[Job]], int], list[list[Job]]], Generator[int, None, None]]
Arrays = dict[Path, tuple[int, ...]]  # files of a set and their shapes


def one_sample(resolution: int, device: torch.device, *, scheme: str | None = None) -> int:
    """Batch size of solvers that solve one sample at a time."""
    return 1


def batch_that_fits(device: torch.device, sample_bytes: int, *, most: int = 128) -> int:
    """Batch size: 1 on a CPU because of its caches; on a GPU a power of two that fits half the free memory.

    Args:
        device: device that solves.
        sample_bytes: memory of the solver per sample.
        most: largest batch size.
    """
    if device.type == "cpu":
        return 1
    free, _ = torch.cuda.mem_get_info(device)
    return 2 ** (max(1, min(most, free // 2 // sample_bytes)).bit_length() - 1)


@dataclass(frozen=True)
class DataGenerator:
    """Generates the files of a benchmark with its solver; an instance is `Benchmark.generate`.

    Each sample has its own random generator, so that it depends neither on the size of the set nor on
    other samples. Functions must be defined in a module, because worker processes import them.

    Args:
        name: name of the benchmark.
        equation: solved equation, for the card.
        solver: numerical method, for the card. Sets with another equation or solver are not resumed.
        units: unit of each field.
        shapes: resolution → shape of each field of a sample; raises UserError for a wrong resolution.
        make: (generator, resolution) → fields of one sample, for solvers that run on the CPU only.
        make_batch: (generators, resolution, device[, scheme=name]) → fields of several samples, stacked, on
            any device; a SampleError names the sample that cannot be solved. Give `make` or `make_batch`.
        batch_size: (resolution, device[, scheme=name]) → number of samples that `make_batch` solves at once.
        schemes: descriptions of the schemes of a solver with several, by name; the first is the default.
    """

    name: str
    equation: str
    solver: str
    units: Mapping[str, str]
    shapes: Callable[[int], dict[str, tuple[int, ...]]]
    make: Make | None = None
    make_batch: MakeBatch | None = None
    batch_size: Callable[..., int] = one_sample
    schemes: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self,
        root: Path,
        *,
        sizes: dict[str, int],
        resolution: int,
        seed: int,
        workers: int,
        tick: Callable[[int], None],
        device: str = "cpu",
        scheme: str | None = None,
        map_batches: MapBatches | None = None,
    ) -> None:
        """Write `{split}_{field}.npy` and a card to `root`, or resume an interrupted call: see `Generate`.

        Arrays are written as `.npy.part` and renamed when complete. A call that is stopped before the first
        sample leaves no file. Scripts need `if __name__ == "__main__":`, as worker processes import them.
        `map_batches` applies a function to batches elsewhere than in processes of this machine.
        """
        if workers < 1:
            raise UserError(f"workers={workers}: expected at least 1")
        scheme = self._require_scheme(scheme)
        plan = Plan.make({"seed": seed, "resolution": resolution, "sizes": sizes, "scheme": scheme})
        shapes, chosen_device = self.shapes(resolution), self.device(device)
        start = Progress(
            plan=plan,
            done=0,
            device=card_device(chosen_device),
            equation=self.equation,
            solver=self.solver + (f"; {self.schemes[scheme]}" if scheme else ""),
        )
        arrays = {
            root / array_name(split, name): (count, *shape)
            for split, count in plan.sizes.items()
            for name, shape in shapes.items()
        }
        with _locked_folder(root):
            if (root / CARD).exists():
                require_same(root, self.name, start)
            else:
                solve = partial(self._solve, device=chosen_device, workers=workers, map_batches=map_batches)
                self._fill(root, start, arrays, solve, tick)

    def _fill(
        self,
        root: Path,
        start: Progress,
        arrays: Arrays,
        solve: Callable[[Path, Progress], Generator[int, None, None]],
        tick: Callable[[int], None],
    ) -> None:
        """Solve the samples that are not on disk and write the card."""
        progress = _resume(root, start, arrays) if (root / PROGRESS).exists() else None
        with _removed_if_empty(root, arrays):
            progress = progress or _reserve_arrays(root, start, arrays)
            if progress.done:
                tick(progress.done)
            _record_progress(root, progress, solve(root, progress), tick)
        self._finish(root, start, list(arrays))

    def device(self, name: str) -> torch.device:
        """The device called `name`; `auto` is the CPU for solvers that run only there."""
        device = resolve_device("cpu" if name == "auto" and self.make_batch is None else name)
        if device.type != "cpu" and self.make_batch is None:
            raise UserError(f"the solver of {self.name} runs on the CPU only; use --device cpu or auto")
        return device

    def _require_scheme(self, name: str | None) -> str | None:
        if name is None:
            return next(iter(self.schemes), None)
        if not self.schemes:
            raise UserError(f"the solver of {self.name} has one scheme only; leave out --scheme")
        if name not in self.schemes:
            near = did_you_mean(name, self.schemes)
            raise UserError(f"the solver of {self.name} has no scheme {name!r}; {near}")
        return name

    def _solve(
        self,
        root: Path,
        progress: Progress,
        device: torch.device,
        workers: int,
        map_batches: MapBatches | None,
    ) -> Generator[int, None, None]:
        """Solve the remaining samples in batches; yield the number of samples of each finished batch."""
        plan, jobs = progress.plan, progress.plan.jobs[progress.done :]
        scheme = {"scheme": plan.scheme} if plan.scheme else {}
        make: MakeBatch
        if self.make_batch:
            make = partial(self.make_batch, **scheme)
        else:
            assert self.make, f"{self.name} has neither make nor make_batch"
            make = partial(_make_one, self.make)
        size, on_cpu = self.batch_size(plan.resolution, device, **scheme), device.type == "cpu"
        if on_cpu:  # distribute small sets over all workers
            size = max(1, min(size, ceil(len(jobs) / workers)))
        batches = [jobs[i : i + size] for i in range(0, len(jobs), size)]
        solve = partial(_solve_batch, make, root, plan, device)
        if map_batches:
            return map_batches(solve, batches)
        return process_map(solve, batches, workers) if on_cpu else (solve(batch) for batch in batches)

    def _finish(self, root: Path, start: Progress, arrays: Sequence[Path]) -> None:
        """Rename the arrays, write the card, remove the record; each step can be repeated after a stop."""
        for path in arrays:
            if _part(path).exists():
                os.replace(_part(path), path)
        facts = {"name": self.name, "units": dict(self.units), **start.plan.model_dump()}
        equations = start.model_dump(include={"equation", "solver", "device"})
        write_card(root, [path.name for path in arrays], facts | equations)
        (root / PROGRESS).unlink(missing_ok=True)


class _Unsolvable(UserError):
    """Error of a sample that fails in every attempt, because the seed determines its random numbers."""


def card_device(device: torch.device) -> str:
    """Name of the device on the card; the number of threads does not affect a set."""
    return "cpu" if device.type == "cpu" else device_name(device)


@contextmanager
def _locked_folder(root: Path) -> Iterator[None]:
    """Create and lock `root`; after an error, remove created folders that are empty."""
    new = [path for path in (root, *root.parents) if not os.path.exists(path)]
    with folder_lock(writable_folder(root)):
        try:
            yield
        except BaseException:
            with suppress(OSError):  # not empty
                for path in new:
                    path.rmdir()
            raise


def _reserve_arrays(root: Path, start: Progress, arrays: Arrays) -> Progress:
    """Reserve the arrays on disk and write the first progress record."""
    existing = [path for path in arrays if path.exists()]
    if existing:
        raise UserError(f"{existing[0]} exists but no {CARD} describes it; move it or choose another folder")
    free, need = shutil.disk_usage(root).free, 4 * sum(prod(shape) for shape in arrays.values())
    if free < need:
        raise UserError(
            f"{root} has {free / 1e9:.2f} GB free but the set needs {need / 1e9:.2f} GB; "
            "make room, choose another folder, or give fewer samples or a lower resolution"
        )
    for path, shape in arrays.items():
        _reserve(_part(path), shape)
    write_json(root / PROGRESS, start.model_dump(mode="json"))
    return start


def _resume(root: Path, start: Progress, arrays: Arrays) -> Progress:
    """Progress of an earlier call; raise if its plan, equation, solver or device differs."""
    progress = read_progress_record(root)
    if progress.plan != start.plan:
        raise UserError(f"{root} was started with {progress.plan}; continue with these or remove the folder")
    require_same_equations(root, progress, start)
    if progress.device != start.device:
        raise UserError(
            f"{root} was started on {progress.device}, and this is {start.device}: results differ by "
            "rounding; continue on that device (--device) or remove the folder"
        )
    if not all(_part(path).exists() or path.exists() for path in arrays):
        raise UserError(f"{root} has lost files of an unfinished set; remove the folder and start again")
    return progress


@contextmanager
def _removed_if_empty(root: Path, arrays: Arrays) -> Iterator[None]:
    """After an error, remove reserved arrays without samples."""
    try:
        yield
    except BaseException as error:
        kept = (root / PROGRESS).exists() and read_progress_record(root).done > 0
        if not kept:
            with suppress(OSError):  # the first error is the one to report
                for path in (root / PROGRESS, *map(_part, arrays)):  # no record without its arrays
                    path.unlink(missing_ok=True)
        if not isinstance(error, _Unsolvable):
            raise
        where = f"finished samples stay in {root}: another --seed with another --out"
        raise UserError(f"{error}; {where if kept else 'another --seed'} draws others") from None


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _reserve(path: Path, shape: tuple[int, ...]) -> None:
    """Write an empty array and allocate its disk space, so that a full disk raises now."""
    try:
        np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape).flush()
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        raise UserError(f"cannot reserve {path}: {error.strerror}; choose another folder") from None


def _record_progress(
    root: Path, progress: Progress, finished: Generator[int, None, None], tick: Callable[[int], None]
) -> None:
    """Report finished batches and write progress records, after syncing the samples to disk."""

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
                if monotonic() - recorded > RECORD_SECONDS:
                    record()
                    recorded = monotonic()
        finally:
            record()


def _make_one(
    make: Make,
    rngs: Sequence[np.random.Generator],
    resolution: int,
    device: torch.device,
) -> Fields:
    (rng,) = rngs
    return {name: values[None] for name, values in make(rng, resolution).items()}


def _solve_batch(make: MakeBatch, root: Path, plan: Plan, device: torch.device, batch: list[Job]) -> int:
    """Solve a batch of samples, write them to their arrays and return their number."""
    rngs = [numpy_generator(plan.seed, SPLITS.index(split), index) for split, index in batch]
    try:
        fields = make(rngs, plan.resolution, device)
    except SampleError as error:
        raise _Unsolvable(f"{_name_samples([batch[error.index]])}: {error.message}") from None
    except UserError as error:
        raise _Unsolvable(f"{_name_samples(batch)}: {error}") from None
    except torch.OutOfMemoryError:
        raise UserError(
            f"{_name_samples(batch)}: {device_name(device)} has too little memory for a batch of "
            f"{len(batch)}; wait until other programs free it, or use --device cpu"
        ) from None
    for name, stack in fields.items():
        for job, values in zip(batch, stack, strict=True):
            if not np.isfinite(values).all():
                raise _Unsolvable(
                    f"{_name_samples([job])}: the solver gave NaN or infinite values for {name}"
                )
            array = np.lib.format.open_memmap(_part(root / array_name(job[0], name)), mode="r+")
            array[job[1]] = values
    return len(batch)


def _name_samples(batch: Sequence[Job]) -> str:
    names = [f"{split} sample {index}" for split, index in batch]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
