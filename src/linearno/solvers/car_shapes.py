"""Random car bodies without wheels and mirrors: hatchbacks, notchbacks, fastbacks and estates.

A body is a map from the box of `car_mesh` to space: sections across the car with a flat floor, barrelled
flanks up to a belt line, and a cabin above it, along a side profile through random knots. Smooth random
displacements along the normals add shapes outside of the parametric family. All bodies are symmetric in x.
Lengths are metres.
"""

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.interpolate import PchipInterpolator
from scipy.ndimage import gaussian_filter1d

from linearno.core.errors import UserError
from linearno.solvers.car_mesh import FINE, SURFACE_POINTS, surface_mesh
from linearno.solvers.surface_distance import ClosedSurface, vertex_normals

Rear = Literal["notchback", "hatchback", "fastback", "estate"]
REARS: tuple[Rear, ...] = get_args(Rear)

MAX_ATTEMPTS = 40
VOLUME = (3.8, 11.0)  # m³, of plausible bodies
MIN_QUAD_AREA = 6e-4  # m²
MIN_COSINE = 0.1  # between the normals of a polygon and of its corners
GRID = 0.06  # spacing of the test for self-intersection
WAVES = 24  # random waves of a displacement
WAVE_LENGTHS = (0.7, 2.0)  # m


@dataclass(frozen=True)
class Car:
    """Parameters of a body; lengths in metres, positions along the car as fractions of its length.

    Args:
        rear: shape of the rear.
        length: overall length.
        width: overall width.
        height: height of the roof above the floor.
        clearance: height of the floor above y = 0.
        hood: height of the front edge of the hood, as a fraction of `height`.
        cowl: height of the lower edge of the windscreen, as a fraction of `height`.
        cowl_position: its position.
        roof_position: position of the roof's front.
        belt: height of the belt line, as a fraction of `height`.
        deck: height of the rear end, as a fraction of `height`.
        tumblehome: reduction of the cabin's width.
        taper: reduction of the width at the front and the rear.
        nose: bulge of the front in metres.
        tail: bulge of the rear in metres.
        wave: amplitude of the random displacement.
    """

    rear: Rear
    length: float = 4.5
    width: float = 1.78
    height: float = 1.22
    clearance: float = 0.13
    hood: float = 0.5
    cowl: float = 0.66
    cowl_position: float = 0.25
    roof_position: float = 0.47
    belt: float = 0.62
    deck: float = 0.68
    tumblehome: float = 0.1
    taper: float = 0.14
    nose: float = 0.2
    tail: float = 0.14
    wave: float = 0.0


BASE: dict[Rear, dict[str, float]] = {
    "notchback": {"length": 4.55, "deck": 0.70},
    "hatchback": {"length": 4.1, "deck": 0.66},
    "fastback": {"length": 4.55, "deck": 0.68},
    "estate": {"length": 4.5, "deck": 0.84},
}
SPREAD: dict[str, tuple[float, float]] = {  # multiplied with the value of the base shape
    "length": (0.9, 1.12),
    "width": (0.93, 1.04),
    "clearance": (0.7, 1.5),
    "cowl_position": (0.75, 1.15),
    "roof_position": (0.93, 1.12),
    "belt": (0.95, 1.05),
    "deck": (0.94, 1.06),
    "tumblehome": (0.2, 1.8),
    "taper": (0.6, 1.3),
    "nose": (0.5, 1.5),
    "tail": (0.5, 1.6),
}
HEIGHT = (1.12, 1.55)  # from sports cars to vans
WAVE = (0.005, 0.022)


class CarBody(NamedTuple):
    """A random body.

    Args:
        points: points (3586, 3) of the surface.
        car: its parameters.
    """

    points: Float[ndarray, "V 3"]
    car: Car

    @property
    def surface(self) -> ClosedSurface:
        return ClosedSurface(self.points, surface_mesh().quads, f"{self.car.rear} body")


def random_car(rng: np.random.Generator) -> CarBody:
    """A random body that is plausible and does not intersect itself."""
    for _ in range(MAX_ATTEMPTS):
        rear = REARS[rng.integers(len(REARS))]
        drawn = {name: rng.uniform(*bounds) for name, bounds in SPREAD.items()}
        height = rng.triangular(HEIGHT[0], 1.22, HEIGHT[1])
        lower = rng.uniform(0.0, 0.06) + 0.10 * (height - HEIGHT[0]) / (HEIGHT[1] - HEIGHT[0])
        hood = {"hood": 0.46 + lower, "cowl": 0.64 + 0.6 * lower}  # tall bodies have higher hoods
        base = Car(rear, **BASE[rear])
        scaled = {name: getattr(base, name) * factor for name, factor in drawn.items()}
        car = Car(rear=rear, **scaled | hood | {"height": height, "wave": rng.uniform(*WAVE)})
        points = displaced(car_points(car), car.wave, rng)
        if not problem(points):
            return CarBody(points, car)
    raise UserError("no plausible body in 40 attempts; take another seed")


def car_points(car: Car) -> Float[ndarray, "V 3"]:
    """Points of the surface of a body, without random displacement."""
    for field in fields(car):
        value = getattr(car, field.name)
        if field.name != "rear" and not np.isfinite(value):
            raise UserError(f"{field.name}={value}: expected a finite number")
    i, j, k = surface_mesh().place.T
    a, v, t = i / (FINE / 2) - 1, j / FINE, k / (3 * FINE)
    top, belt, floor = side_profile(car, t)
    cabin = np.clip((top - belt) / (0.3 * car.height), 0, 1)
    middle = 0.5 + 0.11 * cabin * (1 - car.tumblehome)  # share of the half width at a = 1/2
    bend = (middle - 0.125) / 0.375
    across = (1 - v) * a + v * (bend * a + (1 - bend) * a**3)
    crown = 1 - 0.2 * a**2 - 0.8 * np.abs(a) ** 5.3
    y = floor + v * (belt + (top - belt) * crown - floor)
    barrel = 1 - 0.10 * (1 - v) ** 3 - (0.06 + 0.3 * car.tumblehome * (1 - 0.5 * cabin)) * v**4
    x = car.width / 2 * _plan(car, t) * barrel * across
    return np.stack([x, y, _along(car, a, v, t)], axis=-1)


def side_profile(car: Car, t: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Heights of the roof line, of the belt line and of the floor at fractions t of the length."""
    h, roof = car.height, car.roof_position
    ends = {  # (position, height) of the roof's end and of what follows
        "notchback": [(roof + 0.16, 0.985), (0.86, car.deck + 0.05), (1.0, car.deck)],
        "hatchback": [(roof + 0.22, 0.98), (0.90, 0.88), (1.0, car.deck + 0.04)],
        "fastback": [(roof + 0.14, 0.985), (0.80, 0.87), (1.0, car.deck)],
        "estate": [(roof + 0.26, 0.995), (0.92, 0.95), (1.0, car.deck)],
    }[car.rear]
    knots = [(0.0, car.hood), (0.10, 0.35 * car.cowl + 0.65 * car.hood + 0.03), (car.cowl_position, car.cowl)]
    knots += [(roof, 0.97), (roof + 0.08, 1.0), *ends]
    place, height = np.array(knots).T
    grid = np.linspace(0, 1, 401)
    smooth = gaussian_filter1d(PchipInterpolator(place, height)(grid), 7, mode="nearest")
    top = np.interp(t, grid, smooth) * h
    rise = np.interp(t, [0, 0.12, 0.35, 0.7, 1], [-0.17, -0.05, 0.0, 0.03, 0.03])
    belt = np.minimum((car.belt + rise) * h, 0.97 * top)
    floor = 0.04 * np.clip((0.06 - t) / 0.06, 0, 1) + 0.12 * np.clip((t - 0.82) / 0.18, 0, 1) ** 1.5
    return top + car.clearance, belt + car.clearance, floor + car.clearance


def _plan(car: Car, t: ndarray) -> ndarray:
    """Width as a fraction of the full width."""
    front, rear = np.clip(1 - t / 0.22, 0, 1), np.clip(1 - (1 - t) / 0.26, 0, 1)
    return 1 - car.taper * front**2 - 1.15 * car.taper * rear**2


def _along(car: Car, a: ndarray, v: ndarray, t: ndarray) -> ndarray:
    """z of the points: ends bulge in the middle and recede at the corners and towards the top."""
    body = car.length - car.nose - car.tail
    z = -car.length / 2 + car.nose + body * t
    round_across = 1 - np.abs(a) ** 3
    front, rear = np.clip(1 - t / 0.30, 0, 1) ** 2, np.clip(1 - (1 - t) / 0.25, 0, 1) ** 2
    upright = np.clip(v / 0.12, 0, 1) * np.clip((1 - v) / 0.35, 0, 1) ** 0.7
    z = z - front * car.nose * (0.35 * round_across + 0.65 * upright * (0.35 + 0.65 * round_across))
    low = np.clip(v / 0.15, 0, 1) * np.clip((1 - v) / 0.5, 0, 1) ** 0.8
    return z + rear * car.tail * (0.3 * round_across + 0.7 * low * (0.4 + 0.6 * round_across))


def displaced(
    points: Float[ndarray, "V 3"], amplitude: float, rng: np.random.Generator
) -> Float[ndarray, "V 3"]:
    """Points moved along their normals by random waves with a standard deviation `amplitude`, even in x.

    The floor stays almost flat: the amplitude falls to a quarter where normals point downwards.
    """
    length = rng.uniform(*WAVE_LENGTHS, WAVES)
    direction = rng.normal(size=(WAVES, 3))
    number = 2 * np.pi * direction / np.linalg.norm(direction, axis=1, keepdims=True) / length[:, None]
    phase, weight = rng.uniform(0, 2 * np.pi, WAVES), rng.normal(size=WAVES)
    along = points[:, 1:] @ number[:, 1:].T + phase
    waves = 2 / np.sqrt(WAVES) * np.cos(points[:, :1] * number[:, 0]) * np.cos(along) @ weight
    normals = vertex_normals(points, surface_mesh().quads)
    floor = np.clip(-normals[:, 1:2], 0, 1) ** 2
    return points + amplitude * (1 - 0.75 * floor) * waves[:, None] * normals


def problem(points: Float[ndarray, "V 3"]) -> str | None:
    """Why a body is refused: volume, degenerate polygon or self-intersection; None if it is plausible."""
    if points.shape != (SURFACE_POINTS, 3):
        return f"{len(points)} points, expected {SURFACE_POINTS}"
    quads = surface_mesh().quads
    try:
        surface = ClosedSurface(points, quads, "body")
    except UserError as error:
        return str(error)
    if not VOLUME[0] < surface.volume < VOLUME[1]:
        return f"volume {surface.volume:.2f} m³, expected {VOLUME[0]} to {VOLUME[1]}"
    area = np.linalg.norm(surface.area_vectors, axis=1)
    if area.min() < MIN_QUAD_AREA:
        return f"a quadrilateral of {1e4 * area.min():.2g} cm²"
    unit = surface.area_vectors / area[:, None]
    cosine = (surface.vertex_normals[quads] * unit[:, None]).sum(axis=-1).min()
    if cosine < MIN_COSINE:
        return f"a folded quadrilateral (cosine {cosine:.2f})"
    low, high = surface.bounds
    grid = [np.arange(low[axis] - GRID, high[axis] + GRID, GRID) for axis in range(3)]
    winding = surface.winding_columns(*grid)
    return None if winding.min() >= 0 and winding.max() <= 1 else "the surface intersects itself"
