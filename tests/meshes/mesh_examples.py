"""Small meshes for tests, and functions that read them in one reader process."""

import atexit

import numpy as np
import pytest

from linearno.core.errors import UserError
from linearno.meshes.case_reader import CaseReader
from linearno.meshes.config import CasesConfig
from linearno.meshes.discover import case_file
from linearno.meshes.reader import commands
from linearno.meshes.reader.commands import MeshRequest
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader_process import Reader
from linearno.meshes.tables import Table

pyvista = pytest.importorskip("pyvista")  # modules that import this one are skipped without it

TINY = ["model.width=8", "model.depth=1", "model.heads=2", "model.slices=4", "training.epochs=2"]
SET = [word for change in TINY for word in ("--set", change)]


def box(n=3):
    """Hexahedra in a box of n × (n + 1) × (n + 2) points, with fields at points, in cells and of the case."""
    grid = pyvista.ImageData(
        dimensions=(n, n + 1, n + 2), spacing=(1.0, 0.5, 0.25)
    ).cast_to_unstructured_grid()
    x, y, z = np.asarray(grid.points, float).T
    grid.point_data["p"] = x + 2 * y + 3 * z
    grid.point_data["U"] = np.stack([x, -y, 1 + z], axis=1)
    grid.cell_data["q"] = np.arange(grid.n_cells, dtype=float)
    grid.field_data["speed"] = [float(n)]
    return grid


def plane(n=5, *, hole=False):
    """Quads in the unit square, z = 0."""
    grid = pyvista.ImageData(
        dimensions=(n, n + 1, 1), spacing=(1 / (n - 1), 1 / n, 1)
    ).cast_to_unstructured_grid()
    x, y, _ = np.asarray(grid.points, float).T
    grid.point_data["p"] = np.sin(3 * x) + y
    grid.point_data["U"] = np.stack([y, -x, 0 * x], axis=1)
    grid.cell_data["q"] = np.asarray(grid.cell_centers().points)[:, 0]
    grid.field_data["speed"] = [float(n)]
    if hole:
        centres = np.asarray(grid.cell_centers().points)
        grid = grid.extract_cells(np.abs(centres[:, :2] - 0.5).max(axis=1) > 0.2)
        for name in ("vtkOriginalPointIds", "vtkOriginalCellIds"):
            grid.point_data.pop(name, None)
            grid.cell_data.pop(name, None)
    return grid


def ball(radius=1.0, size=40):
    """A closed surface of triangles."""
    return pyvista.Sphere(radius=radius, theta_resolution=size, phi_resolution=size)


READER = Reader()  # of all tests: a process takes a second to import VTK
atexit.register(READER.close)


def scattered(n, dimensions):
    """Random points that depend on `n` alone."""
    return np.random.default_rng(n).random((n, dimensions))


def read(path, *, beside=None, **request):
    """What the reader process finds in a file. `beside`: the file of its surface."""
    return READER.call(commands.read, CaseFile(path.stem, path, beside), MeshRequest(**request))


def summarise(path):
    return READER.call(commands.summarise, CaseFile(path.stem, path))


def refusal(path, **request):
    """The error with which the reader process refuses a file."""
    with pytest.raises(UserError) as caught:
        read(path, **request)
    assert str(path) in str(caught.value)
    return str(caught.value)


def case_of(path, *, table=None, given=None, truth=True, **config):
    """The case of a file, in the channels of a configuration."""
    source = CaseReader(CasesConfig.make({"components": {}} | config), table or Table({}, {}), given or {})
    return source.read(READER, case_file(path), truth=truth)
