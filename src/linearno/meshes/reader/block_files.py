"""Read files of several blocks: a volume mesh, named parts of its boundary, and times.

OpenFOAM cases and `foamToVTK` output, `.vtm`, `.pvd`, `.series`, `.pvtu`, EnSight `.case`, CGNS, Exodus.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from linearno.core.errors import UserError
from linearno.meshes.reader.mesh import CaseFile

ENSIGHT_SUFFIXES = (".case", ".encas")
EXODUS_SUFFIXES = (".exo", ".e", ".ex2", ".exii")
SUFFIXES = (
    *(".vtm", ".vtmb", ".pvd", ".series", ".pvtu", ".pvtp", ".foam", ".openfoam", ".cgns"),
    *ENSIGHT_SUFFIXES,
    *EXODUS_SUFFIXES,
)
MESH = Path("constant/polyMesh")
INNER = ("internal.vtu", "boundary")  # of a folder that `foamToVTK` writes
READ_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    AttributeError,
    RuntimeError,
    ElementTree.ParseError,
)


class Blocks(NamedTuple):
    """Contents of a file of several blocks.

    Args:
        grid: the mesh, a PyVista grid with fields.
        patches: named parts of its boundary, PyVista surfaces with points of their own.
        times: times of the frames in the file; empty without times.
    """

    grid: Any
    patches: dict[str, Any]
    times: list[float]


def is_openfoam(folder: Path) -> bool:
    """Whether the folder is an OpenFOAM case, on one or on several processors."""
    return (folder / MESH).is_dir() or (folder / "processor0" / MESH).is_dir()


def is_foam_output(folder: Path) -> bool:
    """Whether `foamToVTK` has written a time to this folder."""
    return (folder / INNER[0]).is_file()


def read_blocks(file: CaseFile) -> Blocks:
    """Read the mesh of the frame of a case, with its patches; cached until `forget_blocks`."""
    path = file.path
    modified = path.stat().st_mtime_ns
    return _read_blocks(path, file.frame, modified)


def forget_blocks() -> None:
    _read_blocks.cache_clear()


@lru_cache(maxsize=2)
def _read_blocks(path: Path, frame: int | None, modified: int) -> Blocks:
    try:
        found, times = _open(path, frame)
        grid, patches = _separate(found)
    except UserError:
        raise
    except READ_ERRORS as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UserError(f"is damaged, or not of its format ({reason})") from None
    return Blocks(grid, patches, times)


def _open(path: Path, frame: int | None) -> tuple[Any, list[float]]:
    """The data set of one frame, and all times."""
    import pyvista

    suffix = path.suffix.lower()
    if path.is_dir():
        return _read_folder(path, frame)
    if suffix in (".foam", ".openfoam"):
        return _read_openfoam(path.parent, frame)
    if suffix == ".series":
        return _read_series(path, frame)
    if suffix in (".vtm", ".vtmb"):
        return _read_multiblock(path), []
    if suffix == ".pvd":
        return _read_pvd(path, frame)
    with pyvista.VtkErrorCatcher(raise_errors=True, send_to_logging=False):
        reader: Any = pyvista.ExodusIIReader(path) if suffix in EXODUS_SUFFIXES else pyvista.get_reader(path)
        if suffix == ".cgns":
            reader.enable_all_bases()
            reader.enable_all_families()
            reader.load_boundary_patch = True
        times = _select_time(reader, frame)
        return reader.read(), times


def _select_time(reader: Any, frame: int | None) -> list[float]:
    times = [float(time) for time in getattr(reader, "time_values", None) or []]
    if times:
        reader.set_active_time_point(_frame_number(frame, len(times)))
    return times


def _frame_number(frame: int | None, count: int) -> int:
    if frame is not None and frame >= count:
        raise UserError(f"holds {count} frames, not {frame + 1}")
    return count - 1 if frame is None else frame


def _read_folder(folder: Path, frame: int | None) -> tuple[Any, list[float]]:
    import pyvista

    if is_openfoam(folder):
        return _read_openfoam(folder, frame)
    if not is_foam_output(folder):
        raise UserError("is neither an OpenFOAM case nor output of foamToVTK")
    blocks = pyvista.MultiBlock({"internal": pyvista.read(folder / INNER[0])})
    boundary = pyvista.MultiBlock()
    for path in sorted((folder / INNER[1]).glob("*.vtp")):
        boundary[path.stem] = pyvista.read(path)
    blocks["boundary"] = boundary
    return blocks, []


def _read_openfoam(folder: Path, frame: int | None) -> tuple[Any, list[float]]:
    """Read an OpenFOAM case; times without fields, and time 0 if there are others, are no frames."""
    import pyvista

    control = folder / "system" / "controlDict"
    if not control.is_file():
        raise UserError("has a polyMesh but no system/controlDict: it is no complete OpenFOAM case")
    reader: Any = pyvista.POpenFOAMReader(control)
    if not (folder / MESH).is_dir():
        reader.case_type = "decomposed"
    reader.skip_zero_time = False
    names = list(reader.time_values)
    times = [float(time) for time in names if float(time) > 0]
    if not times:
        raise UserError("has no results after time 0: its run has crashed, or was not started")
    time = times[_frame_number(frame, len(times))]
    reader.enable_all_patch_arrays()
    reader.set_active_time_value(time)
    with pyvista.VtkErrorCatcher(raise_errors=True, send_to_logging=False):
        found = reader.read()
    return found, times


def _read_series(path: Path, frame: int | None) -> tuple[Any, list[float]]:
    """Read one of the files that a ParaView `.series` file lists."""
    listed = json.loads(path.read_text(encoding="utf-8"))
    files = listed.get("files") if isinstance(listed, dict) else None
    if not isinstance(files, list) or not all(isinstance(one, dict) and "name" in one for one in files):
        raise UserError("is not a ParaView series: expected a list of files with names")
    files = [one for one in files if (path.parent / str(one["name"])).is_file()]
    if not files:
        raise UserError("lists no file that exists")
    files.sort(key=lambda one: float(one.get("time", 0)))
    times = [float(one.get("time", number)) for number, one in enumerate(files)]
    chosen = path.parent / str(files[_frame_number(frame, len(files))]["name"])
    return _read_member(chosen), times


def _read_pvd(path: Path, frame: int | None) -> tuple[Any, list[float]]:
    """Read one time of a `.pvd` collection; its parts are blocks."""
    import pyvista

    found = [one for one in ElementTree.parse(path).getroot().iter("DataSet") if one.get("file")]
    times = sorted({float(one.get("timestep") or 0) for one in found})
    if not times:
        raise UserError("lists no files")
    time = times[_frame_number(frame, len(times))]
    members = [one for one in found if float(one.get("timestep") or 0) == time]
    blocks = pyvista.MultiBlock()
    for number, one in enumerate(members):
        name = one.get("name") or (f"part{one.get('part')}" if one.get("part") else "") or f"part{number}"
        blocks[name] = _read_member(path.parent / str(one.get("file")))
    return blocks[0] if len(members) == 1 else blocks, times


def _read_multiblock(path: Path) -> Any:
    """Read a `.vtm` file block by block; VTK loses the names of some."""
    import pyvista

    blocks = pyvista.MultiBlock()
    for number, (name, file) in enumerate(_members(ElementTree.parse(path).getroot(), "")):
        blocks[f"{name or number}"] = _read_member(path.parent / file)
    return blocks


def _members(element: ElementTree.Element, path: str) -> Iterator[tuple[str, str]]:
    """Names and files of the data sets of a `.vtm` file."""
    for child in element:
        file = child.get("file")
        name = child.get("name") or (Path(file).stem if file else "")
        if child.tag == "DataSet" and file:
            yield f"{path}/{name}".strip("/"), file
        else:
            yield from _members(child, f"{path}/{name}" if child.tag == "Block" else path)


def _read_member(path: Path) -> Any:
    import pyvista

    if path.suffix.lower() in (".vtm", ".vtmb"):
        return _read_multiblock(path)
    with pyvista.VtkErrorCatcher(raise_errors=True, send_to_logging=False):
        return pyvista.get_reader(path).read()


def _separate(found: Any) -> tuple[Any, dict[str, Any]]:
    """The mesh of highest dimension, merged from its blocks, and the other blocks as patches."""
    import pyvista

    if not isinstance(found, pyvista.MultiBlock):
        return found, {}
    blocks = [(name, block) for name, block in _leaves(found, "") if block.n_points]
    if not blocks:
        raise UserError("holds no mesh")
    sized = [(_dimension(block), name, block) for name, block in blocks]
    highest = max(dimension for dimension, *_ in sized)
    inner = [(name, block) for dimension, name, block in sized if dimension == highest]
    outer = [(name, block) for dimension, name, block in sized if dimension == highest - 1]
    grid = inner[0][1] if len(inner) == 1 else pyvista.merge([block for _, block in inner], merge_points=True)
    parts = inner if highest == 2 and len(inner) > 1 and not outer else outer  # a surface in named parts
    names = _short_names([name for name, _ in parts])
    return grid, {name: _as_unstructured(block) for name, (_, block) in zip(names, parts, strict=True)}


def _leaves(blocks: Any, path: str) -> Iterator[tuple[str, Any]]:
    import pyvista

    for number in range(blocks.n_blocks):
        block = blocks[number]
        name = f"{path}/{blocks.get_block_name(number) or number}"
        if isinstance(block, pyvista.MultiBlock):
            yield from _leaves(block, name)
        elif block is not None and hasattr(block, "n_cells"):
            yield name, block


def _dimension(block: Any) -> int:
    from vtkmodules.vtkCommonDataModel import vtkGenericCell

    if not block.n_cells:
        return -1
    whole = block if hasattr(block, "celltypes") else block.cast_to_unstructured_grid()
    kinds = np.unique(whole.celltypes).tolist()
    return max(vtkGenericCell.InstantiateCell(kind).GetCellDimension() for kind in kinds)


def _short_names(paths: list[str]) -> list[str]:
    """Last component of each block's path; the whole path where two have the same."""
    last = [path.rpartition("/")[2] for path in paths]
    return [
        name if last.count(name) == 1 else path.strip("/") for name, path in zip(last, paths, strict=True)
    ]


def _as_unstructured(block: Any) -> Any:
    import pyvista

    return block if isinstance(block, pyvista.UnstructuredGrid) else block.cast_to_unstructured_grid()
