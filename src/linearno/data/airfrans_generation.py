"""Generate AirfRANS with the solver: flows in the cells of C-grids; export them as files in its layout."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool
from numpy import ndarray

from linearno.core.device import available_cores
from linearno.core.optional_deps import require_extra
from linearno.data.airfrans_layout import write_layout
from linearno.data.airfrans_names import FOLDERS
from linearno.data.airfrans_sets import CASE, grid_cells, pack_case
from linearno.data.generation.generate import DataGenerator, batch_that_fits
from linearno.solvers.rans import airfoil_flows, memory_per_flow, sample_case
from linearno.solvers.redraw import Fields, solve_with_redraws

RESOLUTION = 88  # cells outwards; 296 along the grid
MAX_DRAWS = 8
NODES = 60_000  # least number of nodes of a simulation written as files
NUMBERS = ("lift", "drag", "pressure_drag", "residual", "steps")


def make_airfrans(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device, *, scheme: str
) -> Fields:
    """Random airfoils and their flows; one whose flow does not become steady is drawn again."""

    def solve(samples: list[int]) -> tuple[Fields, Bool[ndarray, "b"]]:
        cases = [sample_case(rngs[index]) for index in samples]
        flows = airfoil_flows(cases, grid_cells(resolution), turbulence=scheme, device=device)
        parts = {name: getattr(flows, name) for name in ("nodes", "velocity", "pressure", "nut", *NUMBERS)}
        arrays = {name: values.cpu().numpy().astype(np.float32) for name, values in parts.items()}
        return {"case": np.stack([*map(pack_case, cases)]), **arrays}, flows.steady.cpu().numpy()

    return solve_with_redraws(rngs, solve, max_draws=MAX_DRAWS, problem="no steady flow around {} airfoils")


def airfrans_batch(resolution: int, device: torch.device, *, scheme: str) -> int:
    """Batch size: what fits into the memory of a GPU."""
    return batch_that_fits(device, memory_per_flow(grid_cells(resolution)), most=1024)


def airfrans_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    wake, side, outward = grid_cells(resolution)
    cells = 2 * (wake + side), outward
    fields = {"velocity": (*cells, 2), "pressure": cells, "nut": cells}
    nodes = {"nodes": (cells[0] + 1, cells[1] + 1, 2)}
    return {"case": (CASE,), **nodes, **fields, **dict.fromkeys((*NUMBERS, "draws"), ())}


def export_airfrans(root: Path, out: Path, tick: Callable[[int], None]) -> int:
    """Write a generated set to `out/Dataset` in the layout of AirfRANS, and return the number of simulations.

    Args:
        root: folder of the generated set.
        out: folder in which `Dataset` is created; finished simulations in it are kept.
        tick: called with the number of simulations written since its last call.
    """
    require_extra("pyvista", "mesh")
    return write_layout(root, out / FOLDERS[1], NODES, workers=available_cores(), tick=tick)


generate_airfrans = DataGenerator(
    name="airfrans",
    equation="steady Reynolds-averaged Navier–Stokes equations of an incompressible fluid around a NACA "
    "airfoil of four or five digits and chord 1 m, viscosity 1.56e-5 m²/s, fully turbulent; case = speed and "
    "angle of the stream and the digits, drawn by the law of AirfRANS; nodes of a C-grid, and velocity, "
    "pressure over density and eddy viscosity in its cells",
    solver="finite volumes on a C-grid of 100 chords, artificial compressibility, Roe's flux of second "
    "order, implicit march with direct solves; lift, drag and pressure_drag are coefficients; an airfoil "
    "whose flow does not become steady is drawn again: draws is the draw that was kept",
    units={
        "case": "m/s, degrees, NACA digits",
        "nodes": "m",
        "velocity": "m/s",
        "pressure": "m²/s²",
        "nut": "m²/s",
        **dict.fromkeys(("lift", "drag", "pressure_drag", "residual"), "dimensionless"),
        **dict.fromkeys(("steps", "draws"), "count"),
    },
    shapes=airfrans_shapes,
    make_batch=make_airfrans,
    batch_size=airfrans_batch,
    schemes={"sst": "k-ω SST turbulence", "sa": "Spalart–Allmaras turbulence"},
)
