"""Generate ShapeNet-Car: random bodies in the wind tunnel of the lattice Boltzmann solver."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray

from linearno.core.device import available_cores
from linearno.core.errors import UserError
from linearno.data.generation.card import array_name, open_array, read_card_for
from linearno.data.generation.generate import DataGenerator, batch_that_fits
from linearno.data.shapenet_car_files import car_name, fold_of, published_folder, write_car
from linearno.data.shapenet_car_points import CarFields
from linearno.solvers.car_mesh import (
    CORNERS,
    OUTER_CORNERS,
    SURFACE_POINTS,
    VOLUME_POINTS,
    surface_mesh,
    volume_mesh,
    volume_points,
)
from linearno.solvers.car_shapes import random_car
from linearno.solvers.lattice_boltzmann import MAX_POPULATIONS
from linearno.solvers.wind_tunnel import Tunnel, solve_wind_tunnel

RESOLUTION = 84  # cells across the channel of 5.25 m: 6.25 cm
MIN_RESOLUTION, MAX_RESOLUTION = 40, 256
CHANNEL = 5.25  # m
MAX_BATCH = 32  # cars on a GPU
FIELDS = ("points", "pressure", "nodes", "velocity")


def tunnel_of(resolution: int, scheme: str = "half") -> Tunnel:
    """The channel with `resolution` cells across, all of it (`full`) or the half x > 0."""
    if resolution % 2 or not MIN_RESOLUTION <= resolution <= MAX_RESOLUTION:
        raise UserError(
            f"resolution={resolution}: expected an even number of cells across the channel of {CHANNEL} m, "
            f"{MIN_RESOLUTION} to {MAX_RESOLUTION}; {RESOLUTION} are cells of {CHANNEL / RESOLUTION} m"
        )
    return Tunnel(spacing=CHANNEL / resolution, symmetric=scheme == "half")


def make_cars(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device, scheme: str = "half"
) -> dict[str, ndarray]:
    """Random cars, and the mean flow around them."""
    with ThreadPoolExecutor(min(len(rngs), available_cores())) as pool:
        bodies = list(pool.map(random_car, rngs))
        nodes = list(pool.map(lambda body: volume_points(body.points), bodies))
    surfaces = [body.surface for body in bodies]
    flow = solve_wind_tunnel(surfaces, tunnel_of(resolution, scheme), device=device)
    pressure = [flow.surface_pressure(i, surface) for i, surface in enumerate(surfaces)]
    velocity = [flow.velocity(i, points) for i, points in enumerate(nodes)]
    for field in velocity:
        field[volume_mesh().shared] = 0  # no slip
    stacks = {"points": [body.points for body in bodies], "pressure": pressure}
    stacks |= {"nodes": nodes, "velocity": velocity}
    return {name: np.stack(parts).astype(np.float32) for name, parts in stacks.items()}


def car_batch(resolution: int, device: torch.device, scheme: str = "half") -> int:
    """Batch size: two buffers of 19 populations, and as many while a step is captured."""
    cells = int(np.prod([size + 2 for size in tunnel_of(resolution, scheme).shape]))
    most = max(1, min(MAX_BATCH, MAX_POPULATIONS // (19 * cells)))
    most = max(1, min(MAX_BATCH, MAX_POPULATIONS // (19 * cells)))
    return batch_that_fits(device, 4 * cells * (4 * 19 + 12), most=most)


def car_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    tunnel_of(resolution)
    return {
        "points": (SURFACE_POINTS, 3),
        "pressure": (SURFACE_POINTS,),
        "nodes": (VOLUME_POINTS, 3),
        "velocity": (VOLUME_POINTS, 3),
    }


generate_shapenet_car = DataGenerator(
    name="shapenet-car",
    equation="air at 20 m/s around random car bodies (parametric hatchbacks, notchbacks, fastbacks and "
    "estates with random displacements along the normals, symmetric in x, without wheels and ground) in a "
    "closed channel of 5.25 x 5.25 m; density 1, eddy viscosity 0.02 m2/s and Smagorinsky constant 0.17; "
    "pressure at the points of the surface, velocity at the nodes of the volume, 0 at those on the surface",
    solver="lattice Boltzmann method D3Q19, recursive regularised collision, interpolated walls with slip"
    " 0.1, speed 0.15 in lattice units, 1.5 s, mean over the second half; resolution = cells across",
    units={"points": "m", "pressure": "Pa", "nodes": "m", "velocity": "m/s"},
    make_batch=make_cars,
    batch_size=car_batch,
    shapes=car_shapes,
    schemes={"half": "half of the channel, x > 0, mirrored", "full": "whole channel"},
)


def stored_cars(root: Path, split: str, how: str) -> Callable[[int], CarFields]:
    """Function that reads a car of a generated split."""
    arrays = {name: open_array(root / array_name(split, name), how=how) for name in FIELDS}
    expected = car_shapes(RESOLUTION)
    for name, array in arrays.items():
        if array.shape[1:] != expected[name]:
            raise UserError(
                f"{root / array_name(split, name)}: {name} has shape {array.shape}; expected (samples, "
                f"{', '.join(map(str, expected[name]))}); {how}"
            )

    def read(index: int) -> CarFields:
        points, pressure, nodes, velocity = (np.asarray(arrays[name][index]) for name in FIELDS)
        return CarFields(points, surface_mesh().quads, pressure, nodes, velocity)

    return read


def export_cars(root: Path, out: Path, tick: Callable[[int], None]) -> int:
    """Write a generated set in the published layout, and return the number of cars.

    Args:
        root: folder of the generated set.
        out: new folder; param0 to param8 are created in it.
        tick: called with the number of cars written since its last call.
    """
    how = f"run `linearno data generate shapenet-car --out {root}`"
    card = read_card_for(root, "shapenet-car", how=how)
    if published_folder(out) is not None:
        raise UserError(f"{out} has cars already; choose another folder")
    mesh = volume_mesh()
    for split, count in card.sizes.items():
        read = stored_cars(root, split, how)
        for index in range(count):
            car = read(index)
            folder = out / f"param{fold_of(split, index)}" / car_name(split, index)
            unused = car.nodes[CORNERS : CORNERS + OUTER_CORNERS]
            write_car(folder, car, CORNERS, unused, mesh.hexahedra)
            tick(1)
    return sum(card.sizes.values())
