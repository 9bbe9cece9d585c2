"""Find the cases in a folder, and split them into training and test cases."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from glob import escape
from operator import attrgetter
from pathlib import Path
from typing import Literal

from linearno.core.errors import UserError, require
from linearno.core.randomness import numpy_generator
from linearno.meshes.reader import commands
from linearno.meshes.reader.block_files import is_foam_output, is_openfoam
from linearno.meshes.reader.io import SUFFIXES
from linearno.meshes.reader.mesh import FRAME_MARK, CaseFile
from linearno.meshes.reader_process import Reader
from linearno.meshes.simulations import ALL_FILES, case_names, simulation_paths, stem_of

SURFACE_SUFFIX = ".stl"
MAX_LISTED = 5  # names in a message
Share = int | float | tuple[str, ...]  # a number of cases, a fraction of them, or patterns of their names
Frames = Literal["last", "all"]

log = logging.getLogger(__name__)


def find_cases(root: Path, pattern: str = ALL_FILES, frames: Frames = "last") -> list[CaseFile]:
    """Cases in a folder, sorted by name; or one case, if `root` is one.

    A simulation is one case: an OpenFOAM case folder, a file that refers to others with these files, or a
    single file. Hidden files and folders below `root` are left out.

    Args:
        root: folder of cases, or one case.
        pattern: of the files or case folders, relative to `root`.
        frames: "last" time of each simulation, or "all" times, each a case.
    """
    require(root, how="give a folder of cases, or one file")
    found = [case_file(root)] if root.is_file() else _cases_below(root, pattern)
    return found if frames == "last" else [frame for case in found for frame in _frames_of(case)]


def _cases_below(root: Path, pattern: str) -> list[CaseFile]:
    found = simulation_paths(root, pattern)
    if not found:
        raise UserError(
            f"{root} holds no case ({pattern}); expected OpenFOAM case folders, or files of "
            f"{', '.join(SUFFIXES)}"
        )
    stems = {path.with_suffix("") for path in found if path.suffix.lower() != SURFACE_SUFFIX}
    paths = [
        path for path in found if path.suffix.lower() != SURFACE_SUFFIX or path.with_suffix("") not in stems
    ]
    names = case_names(root, paths)
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{root} holds {repeated!r} in several formats; choose one, as in files: '**/*.vtu'")
    cases = [case_file(path, name) for path, name in zip(paths, names, strict=True)]
    return sorted(cases, key=attrgetter("name"))


def one_case(path: Path) -> CaseFile:
    """The case of a file or of the folder of one simulation."""
    found = find_cases(path)
    if len(found) > 1:
        raise UserError(f"{path} holds {len(found)} cases, expected one: {found[0].name}, {found[1].name}, …")
    return found[0]


def is_simulation(folder: Path) -> bool:
    """Whether a folder is one case: an OpenFOAM case, or a time that `foamToVTK` has written."""
    return is_openfoam(folder) or is_foam_output(folder)


def case_file(path: Path, name: str | None = None) -> CaseFile:
    """Case of a file or an OpenFOAM case folder, named `name` or by its path."""
    if path.is_dir():
        if not is_simulation(path):
            raise UserError(f"{path}: expected a mesh, or an OpenFOAM case folder")
        return CaseFile(name or path.absolute().name, path)
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: expected one of {', '.join(SUFFIXES)}, got {path.suffix or 'no suffix'!r}")
    require(path, how="give a mesh, or a file of arrays")
    surface = path.with_suffix(SURFACE_SUFFIX)
    has_surface = path.suffix.lower() != SURFACE_SUFFIX and surface.exists()
    return CaseFile(name or stem_of(path), path, surface if has_surface else None)


def _frames_of(case: CaseFile) -> list[CaseFile]:
    """The times of a simulation as cases; the case itself if it has none."""
    with Reader() as reader:
        count = reader.call(commands.frame_count, case)
    if count < 2:
        return [case]
    digits = len(str(count - 1))
    return [
        replace(case, name=f"{case.name}{FRAME_MARK}{number:0{digits}d}", frame=number)
        for number in range(count)
    ]


def split_cases(
    cases: Sequence[CaseFile], train: Share, test: Share, seed: int
) -> tuple[list[CaseFile], list[CaseFile]]:
    """Split cases into training and test cases; numbers and fractions are drawn with the seed.

    All frames of a simulation go to the same split; shares count simulations.
    """
    frames: dict[str, list[CaseFile]] = {}
    for case in cases:
        frames.setdefault(case.simulation, []).append(case)
    firsts = [group[0] for group in frames.values()]
    parts = _split_simulations(firsts, train, test, seed)
    by_name = attrgetter("name")
    chosen = [[frame for case in part for frame in frames[case.simulation]] for part in parts]
    return sorted(chosen[0], key=by_name), sorted(chosen[1], key=by_name)


def _split_simulations(
    cases: Sequence[CaseFile], train: Share, test: Share, seed: int
) -> tuple[list[CaseFile], list[CaseFile]]:
    matched = {
        what: _matching(cases, share) if isinstance(share, tuple) else []
        for what, share in (("train", train), ("test", test))
    }
    if both := set(matched["train"]) & set(matched["test"]):
        name = min(case.name for case in both)
        raise UserError(f"data.train and data.test both match {name!r}; a case is for one of them")
    free = [case for case in cases if case not in {*matched["train"], *matched["test"]}]
    drawn = [free[i] for i in numpy_generator(seed).permutation(len(free))]
    if not isinstance(test, tuple):
        count = count_of(test, len(cases))
        matched["test"], drawn = drawn[:count], drawn[count:]
    if not isinstance(train, tuple):
        matched["train"] = drawn[: count_of(train, len(drawn))]
    for what, part in matched.items():
        if not part:
            raise UserError(
                f"data.{what} leaves no case of {len(cases)}; take more of them, or other patterns"
            )
    for what, share in (("train", train), ("test", test)):
        if isinstance(share, int) and len(matched[what]) < share:
            raise UserError(
                f"data.{what}={share}, but only {len(matched[what])} of {len(cases)} cases are left for it"
            )
    return matched["train"], matched["test"]


def count_of(share: int | float, total: int) -> int:
    """Number of cases for a number or fraction of `total`."""
    return share if isinstance(share, int) else max(1, round(share * total))


def listed(names: Sequence[str]) -> str:
    """Number and first names of cases."""
    more = ", …" if len(names) > MAX_LISTED else ""
    return f"{len(names)} case{'s' if len(names) > 1 else ''} ({', '.join(names[:MAX_LISTED])}{more})"


def known_cases(found: Sequence[CaseFile], known: Sequence[str]) -> list[CaseFile]:
    """Those of the found cases that a data set uses; an error if some of these have vanished.

    Args:
        found: cases in the folder.
        known: names of the simulations that are used; none: all that were found.
    """
    if not known:
        return list(found)
    there = {case.simulation for case in found}
    if gone := [name for name in known if name not in there]:
        raise UserError(
            f"{listed(gone)}: not in the folder any more; `linearno init --update DATASET.yaml` removes such "
            "cases, cases: [] takes all that are there"
        )
    if new := sorted(there - set(known)):
        log.warning(
            "not used, as dataset.yaml does not list them: %s; add them: linearno init --update DATASET.yaml",
            listed(new),
        )
    return [case for case in found if case.simulation in set(known)]


def updated_split(
    found: Sequence[CaseFile], known: Sequence[str], train: Share, test: Share, seed: int
) -> tuple[Share, Share]:
    """Shares for training and test with which the known cases keep their split, as lists of names.

    New cases are drawn in the proportions of the known ones. Patterns stay as they are.

    Args:
        found: all cases that are there.
        known: names of the simulations that were there before.
        train: share of the training cases before.
        test: share of the test cases before.
        seed: of both draws.
    """
    files = {case.simulation: case for case in found}
    former = [files.get(name) or CaseFile(name, Path(name)) for name in sorted(known)]
    parts = [{case.simulation for case in part} for part in split_cases(former, train, test, seed)]
    new = sorted(files.keys() - set(known))
    drawn = [new[i] for i in numpy_generator(seed).permutation(len(new))]
    shares = []
    for share, part in ((test, parts[1]), (train, parts[0])):
        count = round(len(new) * len(part) / len(former))
        chosen, drawn = {*(part & files.keys()), *drawn[:count]}, drawn[count:]
        keep = isinstance(share, tuple) or (part is parts[0] and share == 1.0)
        shares.append(share if keep else tuple(escape(name) for name in sorted(chosen)))
    return shares[1], shares[0]


def _matching(cases: Iterable[CaseFile], patterns: Sequence[str]) -> list[CaseFile]:
    return [
        case
        for case in cases
        if any(
            fnmatch(name, pattern)
            for pattern in patterns
            for name in (case.name, case.simulation, case.path.name)
        )
    ]
