"""Elastoplastic bodies in plane stress at finite deformation, in batches, with explicit time stepping.

    ρ u_tt = ∇·σ,  σ° = E : (ε̇ − ε̇ᵖ)  with Jaumann's rate σ°,  von Mises' stress at most the yield stress

The order of convergence is measured in `forging`.

Axes: B samples, n × m nodes of a grid of square elements, N × M = (n − 1) × (m − 1) elements. Components of
vectors and stresses are in the second axis. Results have the dtype and the device of the input and do not
depend on the other samples of a batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

Nodes = Float[Tensor, "B 2 n m"]
Cells = Float[Tensor, "B N M"]
Vectors = Float[Tensor, "B 2 N M"]
Stress = Float[Tensor, "B 3 N M"]  # (σx + σy)/2, (σx − σy)/2, τxy
Shapes = Float[Tensor, "B 3 2 N M"]  # ∂x/∂i, ∂x/∂j and ∂²x/∂i∂j at the centre of each element
InPlaceUpdate = Callable[[Nodes, Nodes], None]  # changes its arguments in place

NEWTON_STEPS = 3  # of the return mapping
COURANT_SAFETY = 0.7  # step over the estimated stable step; margin for viscosity and contact
VISCOSITY = 0.06  # over the critical damping of the fastest wave of an element
HOURGLASS_FRACTION = 0.1  # stiffness and strength of hourglass modes over those of the element
TINY = 1e-300


@dataclass(frozen=True)
class Material:
    """Isotropic elastoplastic material with linear hardening, in any consistent units.

    Args:
        young: Young's modulus E.
        poisson: Poisson's ratio ν.
        density: ρ.
        yield_stress: initial yield stress.
        hardening: increase of the yield stress per equivalent plastic strain.
    """

    young: float
    poisson: float
    density: float
    yield_stress: float
    hardening: float = 0.0

    @property
    def shear_modulus(self) -> float:
        return self.young / (2 * (1 + self.poisson))

    @property
    def biaxial_modulus(self) -> float:
        """(σx + σy) / (εx + εy) in plane stress."""
        return self.young / (1 - self.poisson)

    @property
    def wave_speed(self) -> float:
        """Speed of a plane longitudinal wave in a sheet."""
        return sqrt(self.young / (self.density * (1 - self.poisson**2)))

    def stable_step(self, spacing: float) -> float:
        """Largest stable time step for elements of width `spacing`."""
        return spacing / (sqrt(2) * self.wave_speed)


def return_to_yield(
    trial: Stress, plastic: Cells, material: Material, *, steps: int = NEWTON_STEPS
) -> tuple[Stress, Cells]:
    """Return mapping: stress and equivalent plastic strain from the elastic trial stress.

    With p = (σx + σy)/2 and s² = ((σx − σy)/2)² + τ² von Mises' stress is q, q² = p² + 3 s². A step of
    implicit Euler for the flow  γ ∂q²/∂σ  divides p by 1 + γ E/(1 − ν) and s by 1 + 6 γ G. Newton's method
    for 1/q, which is nearly linear in γ, finds the smallest γ ≥ 0 with q at most the yield stress.

    Args:
        trial: stress without plastic flow.
        plastic: equivalent plastic strain before the step.
        material: of the body.
        steps: Newton steps.
    """
    a, b, hardening = material.biaxial_modulus, 6 * material.shear_modulus, material.hardening
    bound = material.yield_stress + hardening * plastic if hardening else material.yield_stress
    p2, s2 = trial[:, 0].square(), trial[:, 1].square().addcmul_(trial[:, 2], trial[:, 2]).mul_(3)
    gamma = torch.zeros_like(p2)
    for _ in range(steps):
        of_p, of_s = (a * gamma).add_(1).reciprocal_(), (b * gamma).add_(1).reciprocal_()
        p2_now, s2_now = p2 * of_p * of_p, s2 * of_s * of_s
        q2 = p2_now + s2_now
        over = q2 * q2.sqrt() / bound  # q³ over the yield stress
        slope = (a * p2_now).mul_(of_p).add_((b * s2_now).mul_(of_s))
        if hardening:
            slope, over = slope + 2 * hardening * over, over * (1 - 2 * hardening * gamma)
        gamma = over.sub_(q2).div_(slope.clamp_min_(TINY)).add_(gamma).clamp_min_(0)
    of_p, of_s = (a * gamma).add_(1).reciprocal_(), (b * gamma).add_(1).reciprocal_()
    flow = 2 * gamma * bound
    if hardening:
        flow = flow / (1 - 2 * hardening * gamma)
    return trial * torch.stack([of_p, of_s, of_s], dim=1), plastic + flow


@dataclass(frozen=True)
class Body:
    """State of a body of square elements with unit thickness.

    One-point quads with Flanagan and Belytschko's hourglass control, whose forces are bounded like the yield
    stress. Kirchhoff stresses with Jaumann's rate, so that the thickness needs no equation: only elastic
    strain changes the volume. Leapfrog in time with the strain at the middle of a step, which vanishes for
    rigid rotation.

    Args:
        material: of the body.
        spacing: width of the elements at rest.
        dt: time step.
        position: positions of the nodes.
        velocity: velocities of the nodes.
        shape: derivatives of the positions in the elements.
        stress: stress of the elements.
        plastic: equivalent plastic strain.
        hourglass_force: forces against hourglass modes.
        mean_strain: (εx + εy)/2 of the last step.
        dt_over_mass: dt over the mass of a node.
        hourglass: stiffness and strength of hourglass modes over those of the element.
        viscosity: over the critical damping.
    """

    material: Material
    spacing: float
    dt: float
    position: Nodes
    velocity: Nodes
    shape: Shapes
    stress: Stress
    plastic: Cells
    hourglass_force: Vectors
    mean_strain: Cells
    dt_over_mass: Float[Tensor, "B 1 n m"]
    hourglass: float = HOURGLASS_FRACTION
    viscosity: float = VISCOSITY
    moduli: Float[Tensor, "3 1 1"] = field(init=False)

    def __post_init__(self) -> None:
        stretch, shear = self.material.biaxial_modulus, 2 * self.material.shear_modulus
        moduli = self.position.new_tensor([stretch, shear, shear])[:, None, None]
        object.__setattr__(self, "moduli", moduli)

    @property
    def state(self) -> list[Tensor]:
        """Tensors that a step changes in place."""
        return [
            self.position,
            self.velocity,
            self.shape,
            self.stress,
            self.plastic,
            self.hourglass_force,
            self.mean_strain,
        ]

    def step(self, load: InPlaceUpdate, hold: InPlaceUpdate) -> None:
        """One time step, in place.

        Args:
            load: load(position, force) adds external forces to `force`.
            hold: hold(position, velocity) imposes supports.
        """
        force = self.forces()
        load(self.position, force)
        self.velocity.addcmul_(self.dt_over_mass, force)
        self.position.add_(self.velocity, alpha=self.dt)
        hold(self.position, self.velocity)
        self._update_stress()

    def forces(self) -> Nodes:
        """Internal forces on the nodes."""
        (ax, ay), (bx, by), bending = (part.unbind(1) for part in self.shape.unbind(1))
        damping = (
            self.viscosity * self.material.density * self.material.wave_speed * 2 * self.spacing / self.dt
        )
        mean = torch.add(self.stress[:, 0], self.mean_strain, alpha=damping)
        xx, yy, xy = mean + self.stress[:, 1], mean - self.stress[:, 1], self.stress[:, 2]
        inverse = (ax * by).addcmul_(bx, ay, value=-1).reciprocal_()
        volume = (self.spacing**2 / 2) * inverse
        # forces conjugate to ∂x/∂i and ∂x/∂j, halved because each is the mean of two edges
        along = torch.stack([xx * by - xy * bx, xy * by - yy * bx], dim=1).mul_(volume[:, None])
        across = torch.stack([xy * ax - xx * ay, yy * ax - xy * ay], dim=1).mul_(volume[:, None])
        gx, gy = bending
        half = inverse.mul_(0.5)
        along.addcmul_(self.hourglass_force, (gx * by - gy * bx).mul_(half)[:, None], value=-1)
        across.addcmul_(self.hourglass_force, (gy * ax - gx * ay).mul_(half)[:, None], value=-1)
        on_rows = pad(along - self.hourglass_force, (0, 1)) + pad(along + self.hourglass_force, (1, 0))
        on_columns = pad(across, (1, 0)) - pad(across, (0, 1))
        return pad(on_rows - on_columns, (0, 0, 0, 1)) - pad(on_rows + on_columns, (0, 0, 1, 0))

    def scale_masses(self) -> None:
        """Update the nodal masses: increased at elements that a wave crosses in less than a step."""
        along, across, _ = self.shape.unbind(1)
        lengths = (along.square() + across.square()).sum(dim=1).sqrt_()
        stable = (COURANT_SAFETY / self.material.wave_speed) * element_areas(self.shape) / lengths
        quarter = self.material.density * self.spacing**2 / 4
        mass = quarter * (self.dt / stable.clamp_min(1e-2 * self.dt)).square_().clamp_min_(1)
        on_rows = pad(mass, (0, 1)) + pad(mass, (1, 0))
        on_nodes = pad(on_rows, (0, 0, 0, 1)) + pad(on_rows, (0, 0, 1, 0))
        self.dt_over_mass.copy_((self.dt / on_nodes)[:, None])

    def _update_stress(self) -> None:
        """Update shapes, stresses and hourglass forces after the nodes have moved."""
        now = element_shapes(self.position)
        change, middle = now - self.shape, torch.lerp(self.shape, now, 0.5)
        self.shape.copy_(now)
        along, across, bending = middle.unbind(1)
        d_along, d_across, d_bending = change.unbind(1)
        half = (0.5 / element_areas(middle))[:, None]
        by_x = (d_along * across[:, 1:]).addcmul_(d_across, along[:, 1:], value=-1).mul_(half)  # ½ ∂Δu/∂x
        by_y = (d_across * along[:, :1]).addcmul_(d_along, across[:, :1], value=-1).mul_(half)
        torch.add(by_x[:, 0], by_y[:, 1], out=self.mean_strain)
        strain = torch.stack([self.mean_strain, by_x[:, 0] - by_y[:, 1], by_x[:, 1] + by_y[:, 0]], dim=1)
        spin = by_x[:, 1] - by_y[:, 0]
        trial = rotated(self.stress, spin).addcmul_(strain, self.moduli)
        stress, plastic = return_to_yield(trial, self.plastic, self.material)
        self.stress.copy_(stress)
        self.plastic.copy_(plastic)
        d_bending = d_bending.addcmul(by_x, bending[:, :1], value=-2).addcmul_(by_y, bending[:, 1:], value=-2)
        self._update_hourglass_forces(d_bending, spin)

    def _update_hourglass_forces(self, change: Vectors, spin: Cells) -> None:
        """Rotate the hourglass forces, add the elastic increment and bound them by their strength."""
        force, material = self.hourglass_force, self.material
        rotation = torch.stack([force[:, 1] * -spin, force[:, 0] * spin], dim=1)
        force.add_(rotation).add_(change, alpha=self.hourglass * material.young / 12)
        strength = self.hourglass * material.yield_stress * self.spacing / 4
        inverse_norm = force[:, 0].square().addcmul_(force[:, 1], force[:, 1]).clamp_min_(TINY).rsqrt_()
        force.mul_(inverse_norm.mul_(strength).clamp_max_(1)[:, None])


def body_at_rest(nodes: Nodes, material: Material, *, spacing: float, dt: float, **settings: float) -> Body:
    """A body at rest without stress.

    Args:
        nodes: positions of the nodes.
        material: of the body.
        spacing: width of the elements.
        dt: time step.
        settings: `hourglass` and `viscosity` of `Body`.
    """
    batch, _, n, m = nodes.shape
    cells = nodes.new_zeros(batch, n - 1, m - 1)
    body = Body(
        material=material,
        spacing=spacing,
        dt=dt,
        position=nodes.clone(),
        velocity=torch.zeros_like(nodes),
        shape=element_shapes(nodes),
        stress=cells[:, None].repeat(1, 3, 1, 1),
        plastic=cells.clone(),
        hourglass_force=cells[:, None].repeat(1, 2, 1, 1),
        mean_strain=cells.clone(),
        dt_over_mass=nodes.new_zeros(batch, 1, n, m),
        **settings,
    )
    body.scale_masses()
    return body


def element_shapes(position: Nodes) -> Shapes:
    """Mean edges of the elements along both axes, and the difference of opposite edges."""
    low, high = position[:, :, :-1], position[:, :, 1:]
    along, both = high - low, (high + low).mul_(0.5)
    mean = (along[..., 1:] + along[..., :-1]).mul_(0.5)
    return torch.stack([mean, both[..., 1:] - both[..., :-1], along[..., 1:] - along[..., :-1]], dim=1)


def element_areas(shape: Shapes) -> Cells:
    """Areas of the elements; negative if inverted."""
    along, across, _ = shape.unbind(1)
    return (along[:, 0] * across[:, 1]).addcmul_(along[:, 1], across[:, 0], value=-1)


def rotated(stress: Stress, spin: Cells) -> Stress:
    """Rotate the stress anticlockwise by atan(`spin`)."""
    mean, difference, shear = stress.unbind(1)
    factor = 2 / (spin * spin).add_(1)
    cos, sin = factor - 1, factor * spin  # of the doubled angle
    return torch.stack([mean, cos * difference - sin * shear, sin * difference + cos * shear], dim=1)
