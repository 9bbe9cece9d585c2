"""Paths of the simulations in a folder: one for each, also where a program writes many files."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from linearno.meshes.reader import block_files, frd_file
from linearno.meshes.reader.block_files import is_foam_output, is_openfoam
from linearno.meshes.reader.io import SUFFIXES
from linearno.meshes.tables import TABLES, is_point_table

ALL_FILES = "**/*"
REFERRING = (".vtm", ".vtmb", ".pvd", ".series", ".pvtu", ".pvtp", ".xdmf", ".xmf")  # to further files
REFERENCE = re.compile(
    r"""(?:\b(?:file|Source|source)\s*=\s*["']|"name"\s*:\s*")([^"'\n]+)["']|([\w./-]+\.h5):"""
)
MESH_ONLY = (".msh", ".inp", ".bdf", ".nas", ".fem", ".su2")  # seldom with results
FOAM_FOLDERS = re.compile(
    r"constant|system|VTK|postProcessing|dynamicCode|logs|processors?\d+|\d+(\.\d+)?(e-?\d+)?"
)
MAX_REFERENCES_READ = 2**24  # bytes of a file that refers to others
BLOCKS = (*block_files.SUFFIXES, frd_file.SUFFIX)


def simulation_paths(root: Path, pattern: str = ALL_FILES) -> list[Path]:
    """Files and OpenFOAM case folders that match a pattern; by default one for each simulation."""
    if pattern != ALL_FILES:
        return [path for path in sorted(root.glob(pattern)) if _is_visible(path, root) and _is_case(path)]
    found = list(_below(root, set()))
    if any(path.suffix.lower() not in MESH_ONLY for path in found):
        found = [path for path in found if path.suffix.lower() not in MESH_ONLY]
    return sorted(found)


def _is_visible(path: Path, root: Path) -> bool:
    return not any(part.startswith(".") for part in path.relative_to(root).parts)


def _is_case(path: Path) -> bool:
    """Whether the path is a mesh, and no table of parameters."""
    if path.is_dir():
        return is_openfoam(path) or is_foam_output(path)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return path.name not in TABLES and (is_point_table(path) or path.with_suffix(".stl").exists())
    return path.is_file() and suffix in SUFFIXES


def _below(folder: Path, taken: set[Path]) -> Iterator[Path]:
    """Simulations in a folder and those in it; `taken` are parts of simulations found so far."""
    if folder in taken:
        return
    visible = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    folders = [path for path in visible if path.is_dir()]
    if is_openfoam(folder):
        yield _foam_output(folder) or folder
        folders = [path for path in folders if not FOAM_FOLDERS.fullmatch(path.name)]
    elif is_foam_output(folder):
        yield folder
        return
    else:
        files = [path for path in visible if _is_case(path) and path.is_file()]
        for path in files:
            taken.update(_parts_of(path, files))
        yield from (path for path in files if path not in taken)
    for path in folders:
        yield from _below(path, taken)


def _foam_output(case: Path) -> Path | None:
    """The series, or the single time, that `foamToVTK` has written for an OpenFOAM case."""
    for ending in ("*.vtm.series", "*.vtm"):
        if len(found := list((case / "VTK").glob(ending))) == 1:
            return found[0]
    return None


def _parts_of(path: Path, files: Sequence[Path]) -> Iterator[Path]:
    """Files and folders that belong to the simulation of a file."""
    suffix = path.suffix.lower()
    if suffix in block_files.ENSIGHT_SUFFIXES:
        yield from (other for other in files if other != path and other.stem.startswith(path.stem))
    elif suffix == frd_file.SUFFIX:
        yield path.with_suffix(".inp")
    elif suffix in REFERRING and path.stat().st_size <= MAX_REFERENCES_READ:
        text = path.read_text(encoding="utf-8", errors="replace")
        for first, second in REFERENCE.findall(text):
            part = path.parent / (first or second)
            yield part
            if part.suffix.lower() in REFERRING and part.is_file() and part != path:
                yield from _parts_of(part, files)
            if part.parent != path.parent:
                yield part.parent
                yield part.parent.parent if part.parent.parent != path.parent else part


def case_names(root: Path, paths: Sequence[Path]) -> list[str]:
    """Names of simulations: paths relative to `root` without suffix.

    An OpenFOAM case has the name of its folder. A file of blocks has the name of the highest folder that
    holds no other simulation.
    """
    return [_name_of(root, path, paths) for path in paths]


def _name_of(root: Path, path: Path, paths: Sequence[Path]) -> str:
    above = [path, *path.parents][: len(path.relative_to(root).parts) + 1]  # up to the root
    foam = next((folder for folder in above if folder.is_dir() and is_openfoam(folder)), None)
    if foam is not None:
        return _relative(root, foam)
    if path.is_dir() or path.suffix.lower() in BLOCKS:
        for folder in reversed(above[1:-1]):
            if not any(other != path and other.is_relative_to(folder) for other in paths):
                return _relative(root, folder)
    return _relative(root, path.with_name(stem_of(path)))


def _relative(root: Path, path: Path) -> str:
    name = path.relative_to(root).as_posix()
    return root.absolute().name if name == "." else name


def stem_of(path: Path) -> str:
    """Name of a file without its suffix, or without `.vtm.series`."""
    if path.is_dir():
        return path.name
    return (path.with_suffix("") if path.suffix.lower() == ".series" else path).stem
