"""Sets of simulations of AirfRANS: the original files, or generated flows refined on reading.

Axes: I × J cells of a C-grid, K nodes of its outer border.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from linearno.core.device import available_cores
from linearno.core.errors import UserError
from linearno.data.airfoil_nodes import AirfoilMesh, CellFields, nodes_in_box, refine_flow
from linearno.data.airfrans_files import Simulation, read_simulations
from linearno.data.airfrans_names import (
    MANIFEST,
    ORIGIN,
    Manifest,
    make_manifest,
    manifest_folder,
    read_manifest,
    require_files,
    simulation_name,
)
from linearno.data.array_set import ArraySet
from linearno.data.availability import describe_generated, how_to_fetch, how_to_generate
from linearno.data.generation.card import read_card_for
from linearno.solvers.rans import AirfoilCase, GridCells, refined_nodes

CASE = 6  # numbers of `case`: speed, angle, then the digits, the last one −1 if there are three
NO_DIGIT = -1.0
COARSEST, FINEST = GridCells(40, 64, 64), GridCells(48, 100, 88)  # grids that the solver was tested on
MIN_RESOLUTION = 16
GRID_TOLERANCE = 1e-4  # of stored nodes, in chords; they are float32, up to 100 chords away
NODE_MARGIN = 1.05  # of the typical number of nodes over the least one
READ_AT_ONCE = 64  # flows in memory in float64

FILES = ArraySet(
    "airfrans",
    axes={
        "case": (str(CASE),),
        "nodes": ("I + 1", "J + 1", "2"),
        "velocity": ("I", "J", "2"),
        "pressure": ("I", "J"),
        "nut": ("I", "J"),
    },
    published=dict.fromkeys(("case", "nodes", "velocity", "pressure", "nut"), MANIFEST),
)


@dataclass(frozen=True)
class OriginalFiles:
    """The download of AirfRANS, or a folder in its layout.

    Args:
        root: folder of `manifest.json`, or above its `Dataset`.
        cache: folder of the compact copy; `compact` in the folder of the manifest if None.
    """

    root: Path
    cache: Path | None = None

    @property
    def folder(self) -> Path:
        return manifest_folder(self.root)

    @property
    def how(self) -> str:
        return how_to_fetch("airfrans", self.root)

    @cached_property
    def manifest(self) -> Manifest:
        return read_manifest(self.folder, how=self.how)

    @property
    def source(self) -> str:
        written = ", written by linearno" if (self.folder / ORIGIN).exists() else ""
        return f"files of AirfRANS in {self.folder}{written}"

    def read(self, names: Sequence[str]) -> list[Simulation]:
        require_files(self.folder, names, how=self.how)
        return read_simulations(self.folder, names, self.cache or self.folder / "compact")


class GeneratedFlows:
    """Flows in the cells of C-grids, as `linearno data generate airfrans` writes them.

    Args:
        root: folder of the arrays.
        nodes: least number of nodes of a simulation, in the box of AirfRANS.
    """

    def __init__(self, root: Path, nodes: int):
        how = how_to_generate("airfrans", root)
        card = read_card_for(root, "airfrans", how=how)
        self.nodes, self.source = nodes, describe_generated(card, root)
        self.stored = FILES.open(root, "generated", card.sizes)
        self.cells = grid_cells(self.stored.sizes["J"], along=self.stored.sizes["I"])
        cases = {split: self.stored.read(split, "case").numpy() for split in card.sizes}
        names = {split: [simulation_name(unpack_case(row)) for row in rows] for split, rows in cases.items()}
        names = {"train": [], "test": []} | names
        self.manifest: Manifest = {key: tuple(each) for key, each in make_manifest(**names).items()}
        self._position = {name: (split, i) for split in names for i, name in enumerate(names[split])}
        self._cases = cases

    def read(self, names: Sequence[str]) -> list[Simulation]:
        found: list[Simulation] = []
        for start in range(0, len(names), READ_AT_ONCE):
            found += self._refine([self._position[name] for name in names[start : start + READ_AT_ONCE]])
        return found

    def far_field(self, name: str) -> tuple[Float[ndarray, "K 2"], Float[ndarray, "K 4"]]:
        """Points of the outer border of the grid of a simulation, and the fields there."""
        split, index = self._position[name]
        parts = {field: self.stored.arrays[split, field].values[index] for field in FILES.axes}
        channels = (parts["velocity"], parts["pressure"][..., None], parts["nut"][..., None])
        cells = np.concatenate([part[:, -1] for part in channels], axis=-1)
        padded = np.concatenate([cells[:1], cells, cells[-1:]])
        return parts["nodes"][:, -1], (padded[1:] + padded[:-1]) / 2

    def _refine(self, positions: Sequence[tuple[str, int]]) -> list[Simulation]:
        flows = {
            field: [self.stored.arrays[split, field].values[i].astype(np.float64) for split, i in positions]
            for field in ("velocity", "pressure", "nut")
        }
        cases = [unpack_case(self._cases[split][i]) for split, i in positions]
        stored = [self.stored.arrays[split, "nodes"].values[i] for split, i in positions]
        fields = [CellFields(*parts) for parts in zip(*flows.values(), strict=True)]
        return refined_simulations(cases, self.cells, fields, self.nodes, stored)


SimulationSet = OriginalFiles | GeneratedFlows


def refined_simulations(
    cases: Sequence[AirfoilCase],
    cells: GridCells,
    fields: Sequence[CellFields],
    nodes: int,
    stored: Sequence[ndarray] | None = None,
) -> list[Simulation]:
    """Simulations with `nodes` nodes or more in the box, from flows in the cells of the grids of the cases.

    Args:
        cases: airfoils and streams.
        cells: size of the grids.
        fields: flow of each case, in SI units.
        nodes: least number of nodes.
        stored: nodes of the grids, to be compared with those of this version.
    """
    grids = refined_nodes(cases, cells, 1).numpy()
    for case, grid, expected in zip(cases, grids, grids if stored is None else stored, strict=True):
        if abs(grid - expected).max() > GRID_TOLERANCE:
            raise UserError(
                f"{simulation_name(case)}: its grid is not the one of this version; generate the set again"
            )
    fine = refined_nodes(cases, cells, refinement_for(cells, nodes)).numpy()

    def one(index: int) -> Simulation:
        mesh, values = refine_flow(grids[index], fine[index], cells.wake, fields[index])
        return as_simulation(mesh, values)

    with ThreadPoolExecutor(available_cores()) as pool:
        return list(pool.map(one, range(len(cases))))


def as_simulation(mesh: AirfoilMesh, fields: Float[ndarray, "N 4"]) -> Simulation:
    """A mesh and the fields at its nodes in single precision."""
    return Simulation(
        mesh.nodes.astype(np.float32),
        fields.astype(np.float32),
        mesh.distance.astype(np.float32),
        mesh.wall.astype(np.int32),
        mesh.normals.astype(np.float32),
        mesh.quads.astype(np.int32),
    )


@cache
def refinement_for(cells: GridCells, nodes: int) -> int:
    """Refinement that gives airfoils of any shape at least about `nodes` nodes in the box.

    The same for all airfoils of a set: it is that of NACA 0012, with a margin.
    """
    typical, refinement = [AirfoilCase((0.0, 0.0, 12.0), 60.0, 0.0)], 1
    while nodes_in_box(refined_nodes(typical, cells, refinement)[0].numpy(), cells.wake * refinement) < (
        NODE_MARGIN * nodes
    ):
        refinement += 1
    return refinement


def grid_cells(resolution: int, *, along: int | None = None) -> GridCells:
    """Size of a C-grid with `resolution` cells outwards; an error if `along` is not its number along itself.

    Cells of the wake and of the sides follow linearly from (40, 64, 64) and (48, 100, 88), and below these in
    proportion.
    """
    step = max(0, resolution - COARSEST.outward) / (FINEST.outward - COARSEST.outward)
    factor = min(1, resolution / COARSEST.outward)
    wake, side = (round(factor * (a + step * (b - a))) for a, b in zip(COARSEST[:2], FINEST[:2], strict=True))
    if resolution < MIN_RESOLUTION:
        raise UserError(f"resolution {resolution} is too coarse; AirfRANS needs at least {MIN_RESOLUTION}")
    cells = GridCells(wake, side, resolution)
    if along is not None and 2 * (wake + side) != along:
        raise UserError(
            f"a C-grid of {along} × {resolution} cells is none of these sets; generate the set again"
        )
    return cells


def pack_case(case: AirfoilCase) -> ndarray:
    """A case as `CASE` numbers."""
    digits = (*case.digits, NO_DIGIT)[: CASE - 2]
    return np.array([case.speed, case.angle, *digits])


def unpack_case(row: ndarray) -> AirfoilCase:
    """The case of `pack_case`, whose numbers are rounded to three decimals."""
    speed, angle, *digits = (round(float(value), 3) for value in row)
    return AirfoilCase(tuple(digits[:-1] if digits[-1] == NO_DIGIT else digits), speed, angle)
