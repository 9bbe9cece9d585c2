"""Lower the drag of a car by moving its roof line along gradients of a surrogate, then ask the solver.

python examples/lower_drag.py          some minutes on two cores: nine coarse flows and a short training
"""

import numpy as np
import torch

import linearno
from linearno.inference.bundle import Bundle
from linearno.solvers.car_mesh import surface_mesh
from linearno.solvers.car_shapes import Car, car_points, random_car
from linearno.solvers.surface_distance import ClosedSurface
from linearno.solvers.wind_tunnel import Tunnel, pressure_drag, solve_wind_tunnel

QUADS = surface_mesh().quads
STATIONS, REACH = torch.linspace(-1.0, 2.0, 5), 0.4  # positions and width of the bumps of the roof line, m
MOST = 0.08  # m


def solve(points: np.ndarray, tunnel: Tunnel) -> tuple[np.ndarray, float]:
    """Pressure at the surface points in Pa, and pressure drag in N."""
    surface = ClosedSurface(points, QUADS, "car")
    pressure = solve_wind_tunnel([surface], tunnel).surface_pressure(0, surface)
    return pressure, pressure_drag(surface, pressure)


def moved(points: torch.Tensor, bumps: torch.Tensor) -> torch.Tensor:
    """Points with the roof line raised by smooth bumps of zero mean; the lower half of the car stays."""
    heights = MOST * (bumps.tanh() - bumps.tanh().mean())
    y, z = points[:, 1], points[:, 2]
    upper = ((y - y.mean()) / (y.max() - y.mean())).clamp(min=0)
    rise = (heights * torch.exp(-(((z[:, None] - STATIONS) / REACH) ** 2))).sum(dim=1)
    return torch.stack([points[:, 0], y + upper * rise, z], dim=1)


def area_vectors(points: torch.Tensor) -> torch.Tensor:
    """Normal of each quadrilateral times its area."""
    a, b, c, d = points[torch.as_tensor(QUADS)].unbind(dim=1)
    return torch.linalg.cross(c - a, d - b) / 2


def normals(points: torch.Tensor) -> torch.Tensor:
    """Unit normals at the points."""
    area = area_vectors(points).repeat_interleave(4, dim=0)
    total = torch.zeros_like(points).index_add(0, torch.as_tensor(QUADS).flatten(), area)
    return total / total.norm(dim=1, keepdim=True)


def predicted_drag(surrogate: Bundle, points: torch.Tensor) -> torch.Tensor:
    """Pressure drag in N, with gradients with respect to the points."""
    model, scaler = surrogate.model, surrogate.scaler
    inputs = scaler.encode_inputs(normals(points)[None])
    pressure = scaler.outputs.decode(model(scaler.coords.encode(points[None]), inputs))[0, :, 0]
    return -(pressure[torch.as_tensor(QUADS)].mean(dim=1) * area_vectors(points)[:, 2]).sum()


def main(cars: int = 8, epochs: int = 60, steps: int = 30, seconds: float = 0.9) -> None:
    tunnel = Tunnel(spacing=5.25 / 40, seconds=seconds)
    rng = np.random.default_rng(0)
    shapes = [random_car(rng).points for _ in range(cars)]
    pressure = [solve(points, tunnel)[0] for points in shapes]
    coords = torch.tensor(np.stack(shapes)).float()
    surrogate = linearno.fit(
        "linearno",
        {
            "coords": coords,
            "inputs": torch.stack([normals(points) for points in coords]),
            "targets": torch.tensor(np.stack(pressure)).float()[..., None],
        },
        settings={"width": 32, "depth": 3, "heads": 2, "slices": 16},
        epochs=epochs,
        batch=2,
        lr=3e-3,
        device="cpu",
    )
    start = torch.tensor(car_points(Car("notchback"))).float()
    bumps = torch.zeros(len(STATIONS), requires_grad=True)
    optimizer = torch.optim.Adam([bumps], lr=0.1)
    before = float(predicted_drag(surrogate, start))
    for _ in range(steps):
        optimizer.zero_grad()
        predicted_drag(surrogate, moved(start, bumps)).backward()
        optimizer.step()
    final = moved(start, bumps).detach()
    after = float(predicted_drag(surrogate, final))
    print(f"drag predicted by the surrogate: {before:.1f} N, then {after:.1f} N")
    solved = [solve(points.double().numpy(), tunnel)[1] for points in (start, final)]
    print(f"drag computed by the solver: {solved[0]:.1f} N, then {solved[1]:.1f} N")
    rise = ", ".join(f"{100 * height:+.1f}" for height in MOST * (bumps.tanh() - bumps.tanh().mean()))
    print(f"roof line raised by {rise} cm at z = {', '.join(f'{z:.2g}' for z in STATIONS.tolist())} m")


if __name__ == "__main__":
    main()
