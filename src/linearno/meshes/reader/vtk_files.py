"""Files that VTK reads and writes: `.vtu`, `.vtp`, `.vtk`, `.stl` and the grids `.vts`, `.vtr`, `.vti`."""

from pathlib import Path
from typing import Any

import numpy as np

from .ipc import Arrays, Refused
from .mesh import Cells, Mesh, add_fields, check

WRITERS = {
    ".vtu": ("vtkIOXML", "vtkXMLUnstructuredGridWriter"),
    ".vtp": ("vtkIOXML", "vtkXMLPolyDataWriter"),
    ".vts": ("vtkIOXML", "vtkXMLStructuredGridWriter"),
    ".vtr": ("vtkIOXML", "vtkXMLRectilinearGridWriter"),
    ".vti": ("vtkIOXML", "vtkXMLImageDataWriter"),
    ".vtk": ("vtkIOLegacy", "vtkDataSetWriter"),
}
READERS = {ending: (room, name.replace("Writer", "Reader")) for ending, (room, name) in WRITERS.items()}
READERS[".stl"] = ("vtkIOGeometry", "vtkSTLReader")
OF_KIND = {
    "vtkUnstructuredGrid": ".vtu",
    "vtkPolyData": ".vtp",
    "vtkStructuredGrid": ".vts",
    "vtkRectilinearGrid": ".vtr",
    "vtkImageData": ".vti",
}
ALL_OF = ("Scalars", "Vectors", "Normals", "Tensors", "ColorScalars", "TCoords", "Fields")
END = "_end_of_file"
OWN = "_PYVISTA_USER_DICT"


def read_grid(path: Path) -> Any:
    """The file as pyvista's grid; whatever VTK complains about is a refusal."""
    import pyvista

    ending = path.suffix.lower()
    with _complaints() as said:
        reader = _made(READERS[ending])
        if ending == ".vtk":
            _take_all(reader, path)
        else:
            reader.SetFileName(str(path))
        reader.Update()
        output = reader.GetOutput()
    if said() or (ending == ".stl" and not _stl_is_whole(path)):
        raise Refused(f"is damaged or not a {ending} file ({said() or 'it ends too early'})")
    if output is None or output.GetClassName() not in OF_KIND:
        raise Refused(f"holds {'nothing' if output is None else output.GetClassName()}, expected a mesh")
    for data in (output.GetPointData(), output.GetCellData(), output.GetFieldData()):
        data.RemoveArray(END)
    return pyvista.wrap(output)


def _take_all(reader: Any, path: Path) -> None:
    """All fields of a legacy file. A text that ends too early would be filled up with zeros in silence; with
    words after its end, the reader stumbles over them."""
    for kind in ALL_OF:
        getattr(reader, f"ReadAll{kind}On")()
    reader.SetFileName(str(path))
    with path.open("rb") as file:
        text = b"ASCII" in file.read(400).upper()
    if text:
        content = path.read_bytes() + f"\nFIELD {END} 1\n{END} 1 1 int\n0\n".encode()
        reader.ReadFromInputStringOn()
        reader.SetBinaryInputString(content, len(content))


def _stl_is_whole(path: Path) -> bool:
    """As long as its number of triangles asks for, or with a last word: VTK itself takes any part of one."""
    content = path.read_bytes()
    count = int.from_bytes(content[80:84], "little")
    return len(content) == 84 + 50 * count or b"endsolid" in content[-200:]


def read_mesh(path: Path) -> Mesh:
    """The file as plain arrays, checked, with the units that it tells."""
    try:
        return _mesh_of(read_grid(path))
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError) as error:
        raise Refused(f"is damaged ({error})") from None  # VTK said nothing, but its arrays cannot be used


def _mesh_of(grid: Any) -> Mesh:
    if grid.n_points < 0 or grid.n_cells < 0:
        raise ValueError(f"{grid.n_points} points and {grid.n_cells} cells")
    cells = _cells(grid) if grid.n_cells else None
    shape = grid.copy(deep=False)
    for data in (shape.GetPointData(), shape.GetCellData(), shape.GetFieldData()):
        data.Initialize()
    mesh = Mesh(np.asarray(grid.points), type(grid).__name__, cells=cells, grid=shape)
    for into, found in (
        (mesh.point, grid.point_data),
        (mesh.cell, grid.cell_data),
        (mesh.case, grid.field_data),
    ):
        add_fields(mesh, into, {name: found[name] for name in _names(found)})
        mesh.units |= _labels(found, mesh.written, into)
    return check(mesh)


def _names(found: Any) -> list[str]:
    """Those that are words: in a damaged file some are not."""
    names = (found.VTKObject.GetArrayName(i) for i in range(found.VTKObject.GetNumberOfArrays()))
    return [name for name in names if isinstance(name, str) and name and name != OWN]


def _cells(grid: Any) -> Cells:
    """Without a look at their corners by VTK itself: nothing has been checked yet."""
    import pyvista

    if isinstance(grid, pyvista.PolyData):
        return _polygons(grid)
    if not isinstance(grid, pyvista.UnstructuredGrid):
        grid = grid.cast_to_unstructured_grid()  # a grid with sides cannot have wrong corners
    return Cells(np.asarray(grid.celltypes), np.asarray(grid.cell_connectivity), np.asarray(grid.offset))


def _polygons(grid: Any) -> Cells:
    """Vertices, lines, polygons and strips one after another, in the order of their fields."""
    from vtkmodules.util.numpy_support import vtk_to_numpy

    corners, counts, types = [], [], []
    for part, kinds in (("Verts", (1, 2)), ("Lines", (3, 4)), ("Polys", None), ("Strips", (6, 6))):
        found = getattr(grid, f"Get{part}")()
        if found.GetNumberOfCells():
            corners.append(vtk_to_numpy(found.GetConnectivityArray()).astype(np.int64))
            own = np.diff(vtk_to_numpy(found.GetOffsetsArray()).astype(np.int64))
            counts.append(own)
            few = 1 if part == "Verts" else 2
            types.append(
                np.select([own == 3, own == 4], [5, 9], 7) if kinds is None else np.where(own == few, *kinds)
            )
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return Cells(np.concatenate(types).astype(np.uint8), np.concatenate(corners), offsets)


def _labels(found: Any, written: dict[str, str], into: Arrays) -> dict[str, str]:
    """Units that arrays carry as VTK's own label."""
    from vtkmodules.vtkCommonCore import vtkDataArray

    units = {}
    for name in into:
        array = found.VTKObject.GetAbstractArray(written.get(name, name))
        facts = array.GetInformation() if array is not None and array.HasInformation() else None
        if facts is not None and facts.Has(vtkDataArray.UNITS_LABEL()):
            units[name] = facts.Get(vtkDataArray.UNITS_LABEL())
    return units


def write_grid(
    path: Path, out: Path, ending: str, location: str, added: Arrays, units: dict[str, str]
) -> None:
    """The mesh of `path` with arrays added, as a file of that ending."""
    from vtkmodules.vtkCommonCore import vtkDataArray

    grid = read_grid(path)
    if ending == ".vtu" and OF_KIND[grid.GetClassName()] != ".vtu":
        grid = grid.cast_to_unstructured_grid()
    if ending not in (".vtk", OF_KIND[grid.GetClassName()]):
        fit = ", ".join(dict.fromkeys([OF_KIND[grid.GetClassName()], ".vtu", ".vtk"]))
        raise Refused(f"holds a {type(grid).__name__}, which a {ending} file cannot; write one of {fit}")
    data = grid.point_data if location == "points" else grid.cell_data
    for name, values in added.items():
        data.set_array(np.ascontiguousarray(values), name)
        if name in units:
            data.VTKObject.GetAbstractArray(name).GetInformation().Set(
                vtkDataArray.UNITS_LABEL(), units[name]
            )
    with _complaints() as said:
        writer = _made(WRITERS[ending])
        writer.SetFileName(str(out))
        writer.SetInputData(grid)
        if ending == ".vtk":
            writer.SetFileTypeToBinary()
        done = writer.Write()
    if not done or writer.GetErrorCode() or said():
        raise OSError(said() or "the disk is full, or the folder cannot be written")


def _made(what: tuple[str, str]) -> Any:
    from importlib import import_module

    room, name = what
    return getattr(import_module(f"vtkmodules.{room}"), name)()


class _complaints:
    """While open, what VTK says goes nowhere but here; `said()` is the first error of it, or nothing."""

    def __enter__(self) -> Any:
        from vtkmodules.vtkCommonCore import vtkOutputWindow, vtkStringOutputWindow

        self.before, self.window = vtkOutputWindow.GetInstance(), vtkStringOutputWindow()
        vtkOutputWindow.SetInstance(self.window)
        return self.said

    def __exit__(self, *error: object) -> None:
        from vtkmodules.vtkCommonCore import vtkOutputWindow

        vtkOutputWindow.SetInstance(self.before)

    def said(self) -> str:
        text = self.window.GetOutput() or ""
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        errors = (" ".join(part.split()) for part in text.split("\n\n") if "error" in part.lower())
        return next(((part.partition("): ")[2] or part)[:160] for part in errors), "")
