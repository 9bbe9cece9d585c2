"""Elastoplastic bodies in plane stress, of any deformation, many samples at once, marched explicitly in time.

    ρ u_tt = ∇·σ,  σ° = E : (ε̇ − ε̇ᵖ)  with Jaumann's rate σ°,  von Mises' stress at most the yield stress

How fast the scheme converges is measured where it is used: see `forging`.

Axes: B samples, n × m nodes of a grid of square elements, N × M = (n − 1) × (m − 1) of those. Components of
vectors and stresses are in the second axis. Everything has the dtype and the device of its input; what comes
out for a sample does not depend on the others of its batch.
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
Shapes = Float[Tensor, "B 3 2 N M"]  # ∂x/∂i, ∂x/∂j and ∂²x/∂i∂j in the middle of each element
Act = Callable[[Nodes, Nodes], None]  # changes its second argument, or both, in place

NEWTON = 3  # steps of the return to the yield surface
SAFE = 0.7  # of the largest stable step: the rest is for viscosity, contact and what the estimate leaves out
VISCOSITY = 0.06  # part of the critical damping of the fastest wave that an element carries
HOURGLASS = 0.1  # part of its stiffness and of its strength that an element keeps against bending
TINY = 1e-300


@dataclass(frozen=True)
class Material:
    """Isotropic; yield stress  yields + hardening · (equivalent plastic strain).  Any units that agree."""

    young: float
    poisson: float
    density: float
    yields: float
    hardening: float = 0.0

    @property
    def shear(self) -> float:
        return self.young / (2 * (1 + self.poisson))

    @property
    def stretch(self) -> float:
        """(σx + σy) / (εx + εy) in plane stress."""
        return self.young / (1 - self.poisson)

    @property
    def speed(self) -> float:
        """Of a plane wave in a sheet."""
        return sqrt(self.young / (self.density * (1 - self.poisson**2)))

    def stable_step(self, spacing: float) -> float:
        """The largest for elements of that size."""
        return spacing / (sqrt(2) * self.speed)


def return_to_yield(
    trial: Stress, plastic: Cells, material: Material, *, steps: int = NEWTON
) -> tuple[Stress, Cells]:
    """The stress in place of `trial`, that without plastic flow, and the equivalent plastic strain after it.

    With p = (σx + σy)/2 and s² = ((σx − σy)/2)² + τ² von Mises' stress is q, q² = p² + 3 s². A step of
    implicit Euler for the flow  γ ∂q²/∂σ  divides p by 1 + γ E/(1 − ν) and s by 1 + 6 γ G; the smallest γ ≥ 0
    for which q is not above the yield stress is found by Newton's method for 1/q, nearly linear in γ.
    """
    a, b, hardening = material.stretch, 6 * material.shear, material.hardening
    bound = material.yields + hardening * plastic if hardening else material.yields
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
    """A body of square elements that are `spacing` wide at rest, of unit thickness, between two steps `dt`.

    One-point quads with Flanagan and Belytschko's hourglass control, which here yields as the element does.
    Stresses are Kirchhoff's and follow Jaumann's rate, so the thickness needs no equation of its own:
    elements keep their volume but for the elastic part. Leapfrog in time with the strain of the middle of
    each step: a body that only turns feels none.
    """

    material: Material
    spacing: float
    dt: float
    place: Nodes
    velocity: Nodes
    shape: Shapes
    stress: Stress
    plastic: Cells  # equivalent plastic strain
    twist: Vectors  # forces against hourglass modes
    squeeze: Cells  # (εx + εy)/2 of the last step
    push: Float[Tensor, "B 1 n m"]  # dt over the mass of a node
    hourglass: float = HOURGLASS
    viscosity: float = VISCOSITY
    moduli: Float[Tensor, "3 1 1"] = field(init=False)

    def __post_init__(self) -> None:
        stretch, shear = self.material.stretch, 2 * self.material.shear
        moduli = self.place.new_tensor([stretch, shear, shear])[:, None, None]
        object.__setattr__(self, "moduli", moduli)

    @property
    def state(self) -> list[Tensor]:
        """All that a step changes."""
        return [self.place, self.velocity, self.shape, self.stress, self.plastic, self.twist, self.squeeze]

    def step(self, load: Act, hold: Act) -> None:
        """One step in time, in place: `load(place, force)` adds forces, `hold(place, velocity)` supports."""
        force = self.forces()
        load(self.place, force)
        self.velocity.addcmul_(self.push, force)
        self.place.add_(self.velocity, alpha=self.dt)
        hold(self.place, self.velocity)
        self._strain()

    def forces(self) -> Nodes:
        """Of the elements on their nodes."""
        (ax, ay), (bx, by), twisted = (part.unbind(1) for part in self.shape.unbind(1))
        damping = self.viscosity * self.material.density * self.material.speed * 2 * self.spacing / self.dt
        mean = torch.add(self.stress[:, 0], self.squeeze, alpha=damping)
        xx, yy, xy = mean + self.stress[:, 1], mean - self.stress[:, 1], self.stress[:, 2]
        inverse = (ax * by).addcmul_(bx, ay, value=-1).reciprocal_()
        volume = (self.spacing**2 / 2) * inverse
        # what would do work on ∂x/∂i and on ∂x/∂j, halved for the two edges that each is the mean of
        along = torch.stack([xx * by - xy * bx, xy * by - yy * bx], dim=1).mul_(volume[:, None])
        across = torch.stack([xy * ax - xx * ay, yy * ax - xy * ay], dim=1).mul_(volume[:, None])
        gx, gy = twisted
        half = inverse.mul_(0.5)
        along.addcmul_(self.twist, (gx * by - gy * bx).mul_(half)[:, None], value=-1)
        across.addcmul_(self.twist, (gy * ax - gx * ay).mul_(half)[:, None], value=-1)
        on_rows = pad(along - self.twist, (0, 1)) + pad(along + self.twist, (1, 0))
        on_columns = pad(across, (1, 0)) - pad(across, (0, 1))
        return pad(on_rows - on_columns, (0, 0, 0, 1)) - pad(on_rows + on_columns, (0, 0, 1, 0))

    def weigh(self) -> None:
        """Give nodes their mass: more than their own at elements that a wave crosses in less than a step."""
        along, across, _ = self.shape.unbind(1)
        lengths = (along.square() + across.square()).sum(dim=1).sqrt_()
        stable = (SAFE / self.material.speed) * areas(self.shape) / lengths
        quarter = self.material.density * self.spacing**2 / 4
        mass = quarter * (self.dt / stable.clamp_min(1e-2 * self.dt)).square_().clamp_min_(1)
        on_rows = pad(mass, (0, 1)) + pad(mass, (1, 0))
        on_nodes = pad(on_rows, (0, 0, 0, 1)) + pad(on_rows, (0, 0, 1, 0))
        self.push.copy_((self.dt / on_nodes)[:, None])

    def _strain(self) -> None:
        """Stresses after the nodes have moved."""
        now = shapes_of(self.place)
        change, middle = now - self.shape, torch.lerp(self.shape, now, 0.5)
        self.shape.copy_(now)
        along, across, twisted = middle.unbind(1)
        d_along, d_across, d_twisted = change.unbind(1)
        half = (0.5 / areas(middle))[:, None]
        by_x = (d_along * across[:, 1:]).addcmul_(d_across, along[:, 1:], value=-1).mul_(half)  # ½ ∂Δu/∂x
        by_y = (d_across * along[:, :1]).addcmul_(d_along, across[:, :1], value=-1).mul_(half)
        torch.add(by_x[:, 0], by_y[:, 1], out=self.squeeze)
        strain = torch.stack([self.squeeze, by_x[:, 0] - by_y[:, 1], by_x[:, 1] + by_y[:, 0]], dim=1)
        spin = by_x[:, 1] - by_y[:, 0]
        trial = turned(self.stress, spin).addcmul_(strain, self.moduli)
        stress, plastic = return_to_yield(trial, self.plastic, self.material)
        self.stress.copy_(stress)
        self.plastic.copy_(plastic)
        d_twisted = d_twisted.addcmul(by_x, twisted[:, :1], value=-2).addcmul_(by_y, twisted[:, 1:], value=-2)
        self._bend(d_twisted, spin)

    def _bend(self, change: Vectors, spin: Cells) -> None:
        """Hourglass forces after hourglass modes have changed: those of elastic, then of plastic bending."""
        twist, material = self.twist, self.material
        around = torch.stack([twist[:, 1] * -spin, twist[:, 0] * spin], dim=1)
        twist.add_(around).add_(change, alpha=self.hourglass * material.young / 12)
        most = self.hourglass * material.yields * self.spacing / 4
        size = twist[:, 0].square().addcmul_(twist[:, 1], twist[:, 1]).clamp_min_(TINY).rsqrt_()
        twist.mul_(size.mul_(most).clamp_max_(1)[:, None])


def body_at_rest(nodes: Nodes, material: Material, *, spacing: float, dt: float, **settings: float) -> Body:
    """A body without stress, its nodes at these places."""
    batch, _, n, m = nodes.shape
    cells = nodes.new_zeros(batch, n - 1, m - 1)
    body = Body(
        material=material,
        spacing=spacing,
        dt=dt,
        place=nodes.clone(),
        velocity=torch.zeros_like(nodes),
        shape=shapes_of(nodes),
        stress=cells[:, None].repeat(1, 3, 1, 1),
        plastic=cells.clone(),
        twist=cells[:, None].repeat(1, 2, 1, 1),
        squeeze=cells.clone(),
        push=nodes.new_zeros(batch, 1, n, m),
        **settings,
    )
    body.weigh()
    return body


def shapes_of(place: Nodes) -> Shapes:
    """Of the elements between these nodes: mean edges along both axes, and how opposite edges differ."""
    low, high = place[:, :, :-1], place[:, :, 1:]
    along, both = high - low, (high + low).mul_(0.5)
    mean = (along[..., 1:] + along[..., :-1]).mul_(0.5)
    return torch.stack([mean, both[..., 1:] - both[..., :-1], along[..., 1:] - along[..., :-1]], dim=1)


def areas(shape: Shapes) -> Cells:
    """Below zero where an element is turned inside out."""
    along, across, _ = shape.unbind(1)
    return (along[:, 0] * across[:, 1]).addcmul_(along[:, 1], across[:, 0], value=-1)


def turned(stress: Stress, spin: Cells) -> Stress:
    """Turned by an angle of tangent `spin`, anticlockwise."""
    mean, difference, shear = stress.unbind(1)
    factor = 2 / (spin * spin).add_(1)
    cos, sin = factor - 1, factor * spin  # of twice the angle
    return torch.stack([mean, cos * difference - sin * shear, sin * difference + cos * shear], dim=1)
