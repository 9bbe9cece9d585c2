"""Example simulations: stretched plates with holes, each on its own mesh, as VTU files."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from linearno.core.atomic_io import folder_lock, read_json, writable_folder, write_atomically, write_json
from linearno.core.errors import UserError
from linearno.core.optional_deps import require_extra
from linearno.core.provenance import commit, versions
from linearno.core.randomness import numpy_generator
from linearno.data.benchmark import DATASETS, Benchmark, Variant
from linearno.data.generation.card import CARD, Card
from linearno.data.generation.workers import process_map
from linearno.meshes.cases import open_cases, verify_cases
from linearno.meshes.config import CasesConfig
from linearno.solvers.perforated_plate import PulledCell, pulled_cell

UNITS = {"displacement": "mm", "stress": "MPa", "angle": "degree"}
RESOLUTION = 10
PLAN = "plan.json"
FEW = 500  # plates, that one process makes before others have started


def generate_cases(
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
    """Fill `root` with plate_0000.vtu and so on; those that are there are not made again."""
    require_extra("pyvista", "mesh")
    if device not in ("auto", "cpu") or scheme:
        raise UserError("pulled plates are solved on a CPU, in one way; leave --device and --scheme out")
    facts = {"seed": seed, "resolution": resolution}
    with folder_lock(writable_folder(root)):
        _begin(root / PLAN, facts)
        todo = [i for i in range(sum(sizes.values())) if not _path(root, i).exists()]
        write = partial(_write, root, seed, resolution)
        if len(todo) <= FEW or workers == 1:
            for number in todo:
                write(number)
                tick(1)
        else:
            with closing(process_map(write, todo, workers)) as written:
                for _ in written:
                    tick(1)
        write_json(root / CARD, _card(facts | {"sizes": sizes}).model_dump(mode="json"))


def _begin(path: Path, facts: dict[str, int]) -> None:
    """What is there must have been begun in the same way."""
    if path.exists() and (there := read_json(path, how="remove it")) != facts:
        raise UserError(f"{path.parent} holds plates of another set ({there}); choose another --out")
    write_json(path, facts)


def _card(facts: dict[str, object]) -> Card:
    return Card.make(
        {
            **facts,
            "name": "cases",
            "equation": "div sigma = 0 in a square of 1 m without a void, plane stress, E = 200 GPa, "
            "Poisson's ratio 0.3, held at the bottom, pulled by 100 MPa at the top, `angle` degrees "
            "clockwise from upwards",
            "solver": "finite elements on nine-node quads; stress is the von Mises stress, from the Gauss "
            "points to the nodes, where it is the mean over the quads around",
            "units": UNITS,
            "files": {},
            "versions": versions(),
            "commit": commit(),
        }
    )


def _path(root: Path, number: int) -> Path:
    return root / f"plate_{number:04d}.vtu"


def _write(root: Path, seed: int, resolution: int, number: int) -> None:
    write_plate(_path(root, number), pulled_cell(numpy_generator(seed, number), resolution))


def write_plate(path: Path, plate: PulledCell) -> None:
    """The plate as a VTU file: fields at its points, the angle of the pull as field data, units as labels."""
    import pyvista
    from vtkmodules.vtkCommonCore import vtkDataArray
    from vtkmodules.vtkIOXML import vtkXMLUnstructuredGridWriter

    def in_space(values: np.ndarray) -> np.ndarray:
        return np.pad(values, ((0, 0), (0, 1)))

    grid = pyvista.UnstructuredGrid({pyvista.CellType.QUAD: plate.quads}, in_space(plate.nodes))
    grid.point_data["displacement"] = in_space(plate.displacement)
    grid.point_data["stress"] = plate.stress
    grid.field_data["angle"] = [plate.angle]
    for data in (grid.GetPointData(), grid.GetFieldData()):
        for name in UNITS:
            if (array := data.GetArray(name)) is not None:
                array.GetInformation().Set(vtkDataArray.UNITS_LABEL(), UNITS[name])

    def write(temporary: Path) -> None:
        writer = vtkXMLUnstructuredGridWriter()
        writer.SetFileName(str(temporary))
        writer.SetInputData(grid)
        if not writer.Write():
            raise OSError("VTK could not write it")

    write_atomically(path, write)


DATASETS.register("cases")(
    Benchmark(
        summary="Your own simulations, as mesh files (docs/how-to/own-simulations.md); `generate` "
        "writes an example: stretched plates with holes, each on its own mesh",
        config=CasesConfig,
        open=open_cases,
        verify=verify_cases,
        generate=generate_cases,
        protocol={"epochs": 100, "lr": 2e-3, "weight_decay": 1e-5, "loss": {"scaled": True}},
        models={
            "linearno": Variant(
                settings={"width": 64, "depth": 4, "heads": 4, "slices": 32},
                summary="LinearNO on your own cases: write a dataset.yaml with `linearno init FOLDER`, then "
                "train that.",
            )
        },
        resolution=RESOLUTION,
    )
)
