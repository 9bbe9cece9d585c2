"""Generate example simulations as VTU files: perforated plates under tension, each with its own mesh."""

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
from linearno.solvers.perforated_plate import PerforatedPlate, random_plate

UNITS = {"displacement": "mm", "stress": "MPa", "angle": "degree"}
RESOLUTION = 10
PLAN = "plan.json"
MAX_SERIAL_PLATES = 500  # fewer plates are not worth starting worker processes


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
    """Write plate_0000.vtu, … to `root`; existing files are kept. Arguments: see `Generate`."""
    require_extra("pyvista", "mesh")
    if device not in ("auto", "cpu") or scheme:
        raise UserError("the plates are solved on a CPU with one scheme; leave out --device and --scheme")
    plan = {"seed": seed, "resolution": resolution}
    with folder_lock(writable_folder(root)):
        _require_same_plan(root / PLAN, plan)
        todo = [i for i in range(sum(sizes.values())) if not _path(root, i).exists()]
        write = partial(_write, root, seed, resolution)
        if len(todo) <= MAX_SERIAL_PLATES or workers == 1:
            for number in todo:
                write(number)
                tick(1)
        else:
            with closing(process_map(write, todo, workers)) as written:
                for _ in written:
                    tick(1)
        write_json(root / CARD, _card(plan | {"sizes": sizes}).model_dump(mode="json"))


def _require_same_plan(path: Path, plan: dict[str, int]) -> None:
    """Write the plan; raise if the folder has plates of another plan."""
    if path.exists() and (existing := read_json(path, how="remove it")) != plan:
        raise UserError(f"{path.parent} holds plates of another set ({existing}); choose another --out")
    write_json(path, plan)


def _card(plan: dict[str, object]) -> Card:
    return Card.make(
        {
            **plan,
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
    write_plate(_path(root, number), random_plate(numpy_generator(seed, number), resolution))


def write_plate(path: Path, plate: PerforatedPlate) -> None:
    """Write a plate as VTU: fields at points, the angle of the traction as field data, units as labels."""
    import pyvista
    from vtkmodules.vtkCommonCore import vtkDataArray
    from vtkmodules.vtkIOXML import vtkXMLUnstructuredGridWriter

    def pad_to_3d(values: np.ndarray) -> np.ndarray:
        return np.pad(values, ((0, 0), (0, 1)))

    grid = pyvista.UnstructuredGrid({pyvista.CellType.QUAD: plate.quads}, pad_to_3d(plate.nodes))
    grid.point_data["displacement"] = pad_to_3d(plate.displacement)
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
            ),
            "pod-gp": Variant(
                settings={"output_components": 0.9999999},
                summary="POD-GP on your own cases that share a mesh and differ in few parameters.",
            ),
        },
        resolution=RESOLUTION,
    )
)
