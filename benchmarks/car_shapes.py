"""Statistics and a picture of random car bodies."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from jaxtyping import Float, Int
from numpy import ndarray

from benchmarks.cli.shared import OutOption, SeedOption, keep_record
from benchmarks.lattice_cars import read_cars
from linearno.cli.shared import console, user_errors
from linearno.core.atomic_io import write_bytes
from linearno.core.randomness import numpy_generator
from linearno.reproduce.records import new_record
from linearno.solvers.car_mesh import surface_mesh
from linearno.solvers.car_shapes import CarBody, random_car
from linearno.solvers.surface_distance import ClosedSurface
from linearno.viz import png_bytes
from linearno.viz.bodies import Body, draw_body, picture_table

COLUMNS = 6
SHAPE_SHARE = 0.99  # of the variance, for the number of shape parameters
MEASURES = {
    "length, m": lambda surface, area: np.ptp(surface.vertices[:, 2]),
    "width, m": lambda surface, area: np.ptp(surface.vertices[:, 0]),
    "height, m": lambda surface, area: np.ptp(surface.vertices[:, 1]),
    "volume, m³": lambda surface, area: surface.volume,
    "surface, m²": lambda surface, area: area.sum(),
    "smallest quadrilateral, cm²": lambda surface, area: 1e4 * area.min(),
    "median quadrilateral, cm²": lambda surface, area: 1e4 * np.median(area),
    "largest quadrilateral, cm²": lambda surface, area: 1e4 * area.max(),
}


def car_shapes(
    bodies: Annotated[int, typer.Option(min=2, help="number of random bodies")] = 300,
    reference: Annotated[
        Path | None, typer.Option(help=".npz with points and pressure of other cars")
    ] = None,
    quads: Annotated[Path | None, typer.Option(help=".npz with their quads")] = None,
    picture: Annotated[Path | None, typer.Option(help="PNG with the first 30 bodies to write")] = None,
    seed: SeedOption = 0,
    out: OutOption = None,
) -> None:
    """Compare sizes of random bodies with those of other cars, and draw thirty of them.

    Example:

      python -m benchmarks car-shapes --picture bodies.png --out results
    """
    with user_errors():
        found = [random_car(numpy_generator(seed, index)) for index in range(bodies)]
        points = np.stack([body.points for body in found])
        rows = measure(points, surface_mesh().quads)
        if reference is not None:
            others, _, polygons = read_cars(reference, quads)
            for row, other in zip(rows, measure(others, polygons), strict=True):
                row["reference"] = [other["least"], other["most"]]
        modes = shape_modes(points)
        for row in rows:
            console.print(", ".join(f"{name} {value}" for name, value in row.items()))
        console.print(f"shape parameters for {SHAPE_SHARE:.0%} of the variance: {modes}")
        if picture is not None:
            write_bytes(picture, png_bytes(draw_bodies(found[:30])))
        rears = {rear: sum(body.car.rear == rear for body in found) for rear in {b.car.rear for b in found}}
        details = {"bodies": bodies, "rows": rows, "rears": dict(sorted(rears.items()))}
        record = new_record("solver/lbm/shapes", float(modes), "shape parameters", seed=seed, details=details)
        keep_record(record, out)


def measure(points: Float[ndarray, "S V 3"], quads: Int[ndarray, "P 4"]) -> list[dict[str, Any]]:
    """Mean, smallest and largest value of each measure."""
    surfaces = [ClosedSurface(each, quads, f"body {index}") for index, each in enumerate(points)]
    areas = [np.linalg.norm(surface.area_vectors, axis=1) for surface in surfaces]
    rows = []
    for name, function in MEASURES.items():
        values = [float(function(surface, area)) for surface, area in zip(surfaces, areas, strict=True)]
        rows.append({"what": name, "mean": float(np.mean(values)), "least": min(values), "most": max(values)})
    return rows


def shape_modes(points: Float[ndarray, "S V 3"]) -> int:
    """Number of principal components with SHAPE_SHARE of the variance."""
    centred = (points - points.mean(axis=0)).reshape(len(points), -1)
    share = np.cumsum(np.linalg.svd(centred, compute_uv=False) ** 2)
    return int(np.searchsorted(share / share[-1], SHAPE_SHARE)) + 1


def draw_bodies(found: list[CarBody]) -> Any:
    images = [draw_body(Body(body.points, surface_mesh().quads), size=(320, 180)) for body in found]
    while len(images) % COLUMNS:
        images.append(np.full_like(images[0], 255))
    return picture_table([images[i : i + COLUMNS] for i in range(0, len(images), COLUMNS)])
