"""Plastic flow, waves and energy against what is known of them."""

from dataclasses import replace
from math import pi, sqrt

import numpy as np
import pytest
import torch

from linearno.solvers.forging import STEEL
from linearno.solvers.plasticity import Material, body_at_rest, return_to_yield
from tests.solvers.energies import energies

METAL = Material(young=1000.0, poisson=0.3, density=1.0, yield_stress=2.0, hardening=50.0)


def nothing(*_):
    pass


def mises(stress):
    p, d, s = stress.unbind(1)
    return (p**2 + 3 * (d**2 + s**2)).sqrt()


def grid(n, m, spacing=1.0):
    axes = (spacing * torch.arange(k, dtype=torch.float64) for k in (n, m))
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))[None]


def still(nodes, material=METAL, *, spacing=1.0, step=0.5, **settings):
    dt = step * material.stable_step(spacing)
    return body_at_rest(nodes, material, spacing=spacing, dt=dt, **settings)


@pytest.mark.parametrize("hardening", [0.0, 50.0, 400.0])
def test_a_stress_above_the_yield_surface_returns_to_it_along_its_normal(hardening):
    material = replace(METAL, hardening=hardening)
    generator = torch.Generator().manual_seed(0)
    trial = 3 * torch.randn(1, 3, 40, 25, generator=generator, dtype=torch.float64)
    before = 0.01 * torch.rand(1, 40, 25, generator=generator, dtype=torch.float64)
    stress, plastic = return_to_yield(trial, before, material)
    flows = mises(trial) > material.yield_stress + hardening * before
    assert 0.2 < flows.double().mean() < 0.98
    torch.testing.assert_close(
        mises(stress)[flows], (material.yield_stress + hardening * plastic)[flows], rtol=1e-6, atol=0
    )
    assert torch.equal(stress.transpose(0, 1)[:, ~flows], trial.transpose(0, 1)[:, ~flows])
    assert torch.equal(plastic[~flows], before[~flows])
    # the plastic strain is the trial's elastic strain less the stress's: along ∂q²/∂σ ∝ (p, 3d, 3s)
    moduli = trial.new_tensor(
        [material.biaxial_modulus, 2 * material.shear_modulus, 2 * material.shear_modulus]
    )[:, None, None]
    strain = (trial - stress) / moduli
    normal = stress * torch.tensor([1.0, 3.0, 3.0])[:, None, None]
    rate = (strain / normal).transpose(0, 1)[:, flows]
    torch.testing.assert_close(rate[1:], rate[:1].expand(2, -1), rtol=1e-8, atol=1e-12)
    work = 2 * (strain * stress).sum(dim=1)  # σ : εᵖ = q ε̄
    torch.testing.assert_close(work[flows], (mises(stress) * (plastic - before))[flows], rtol=1e-8, atol=0)


def test_a_small_overshoot_returns_to_rounding_in_the_steps_that_are_taken():
    """As in a march, where a step is far shorter than the strain at yield."""
    angle = torch.linspace(0, 2 * pi, 200, dtype=torch.float64)
    on_surface = torch.stack([angle.cos(), angle.sin() / sqrt(3), torch.zeros_like(angle)])[None, :, :, None]
    trial = 1.1 * STEEL.yield_stress * on_surface
    stress, _ = return_to_yield(trial, torch.zeros(1, 200, 1, dtype=torch.float64), STEEL)
    torch.testing.assert_close(
        mises(stress), torch.full_like(mises(stress), STEEL.yield_stress), rtol=1e-12, atol=0
    )


def test_pulled_slowly_a_bar_follows_young_to_the_yield_stress_and_then_the_law_of_hardening():
    body, speed = still(grid(4, 3), viscosity=0.2), 6e-3
    right = body.position[:, 0, -1].clone()

    def hold(position, velocity):
        nonlocal right
        right = right + speed * body.dt
        position[:, 0, 0], velocity[:, 0, 0] = 0.0, 0.0
        position[:, 0, -1], velocity[:, 0, -1] = right, speed
        position[:, 1, :, 0], velocity[:, 1, :, 0] = 0.0, 0.0

    found = {}
    for _ in range(900):
        body.step(nothing, hold)
        strain = (right[0, 0] / 3).log().item()
        if not found and strain > 1e-3:  # half of what it takes to yield
            found["elastic"] = (body.stress[0, 0].mean() + body.stress[0, 1].mean()).item(), strain
    (elastic, strain), sigma = found["elastic"], (body.stress[0, 0] + body.stress[0, 1]).mean().item()
    assert elastic == pytest.approx(METAL.young * strain, rel=0.02)
    total = (right[0, 0] / 3).log().item()
    expected = METAL.yield_stress + METAL.hardening * (total - sigma / METAL.young)
    assert total > 4 * METAL.yield_stress / METAL.young
    assert sigma == pytest.approx(expected, rel=2e-3)
    assert abs((body.stress[0, 0] - body.stress[0, 1]).mean().item()) < 0.01 * METAL.yield_stress  # σy


def test_a_front_runs_through_a_thin_bar_at_the_root_of_young_over_density():
    """5 % slower than through a sheet that cannot grow thinner."""
    body = still(grid(121, 3), replace(METAL, yield_stress=1e9), hourglass=0.5)

    crossed, time, rise = {}, 0.0, 20 / sqrt(METAL.young)

    def hold(position, velocity):
        velocity[:, 0, 0] = 1e-3 * np.sin(pi / 2 * min(1, time / rise)) ** 2

    while 90 not in crossed:
        body.step(nothing, hold)
        time += body.dt
        for node in (30, 90):
            if node not in crossed and body.velocity[0, 0, node, 1] > 0.5e-3:
                crossed[node] = time
    speed = 60 / (crossed[90] - crossed[30])
    assert speed == pytest.approx(sqrt(METAL.young / METAL.density), rel=0.005)


def test_a_body_that_swings_and_flows_keeps_its_energy():
    nodes = grid(17, 9)
    body = still(nodes, viscosity=0.0, step=0.25)
    x, y = nodes.unbind(1)
    body.velocity[:, 0] = 0.3 * (pi * x / 16).cos()
    body.velocity[:, 1] = 0.2 * (pi * x / 16).cos() * (pi * y / 8).sin()
    start, totals = energies(body)[0], []
    for _ in range(300):
        before = energies(body)[0]
        body.step(nothing, nothing)
        kinetic, *rest = energies(body)
        totals.append((kinetic + before) / 2 + sum(rest))
    _, _, plastic, bending = energies(body)
    assert plastic > 0.3 * start
    assert bending < 0.01 * start
    np.testing.assert_allclose(totals[1:], start, rtol=0.02)


def test_a_body_that_turns_feels_no_strain_and_carries_its_stress_along():
    body = still(grid(3, 3), replace(METAL, yield_stress=1e9))
    body.stress[:, 0], body.stress[:, 1] = 1.0, 1.0  # σx = 2, σy = 0
    rest = body.position.clone()
    for step in range(1, 101):
        c, s = np.cos(step * pi / 200), np.sin(step * pi / 200)
        body.position.copy_(torch.einsum("ij,bjnm->binm", rest.new_tensor([[c, -s], [s, c]]), rest))
        body._update_stress()
    expected = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)[:, None, None].expand(1, 3, 2, 2)
    torch.testing.assert_close(body.stress, expected, rtol=0, atol=0.01)  # σx = 0, σy = 2


def test_nodes_that_only_move_together_or_stretch_evenly_feel_no_hourglass_force():
    generator = torch.Generator().manual_seed(0)
    nodes = grid(6, 5) + 0.1 * torch.randn(1, 2, 6, 5, generator=generator, dtype=torch.float64)
    body = still(nodes, replace(METAL, yield_stress=1e9), viscosity=0.0)
    gradient = torch.tensor([[1e-4, 3e-4], [-2e-4, 2e-4]], dtype=torch.float64)
    body.position.add_(torch.einsum("ij,bjnm->binm", gradient, nodes) + 0.3)
    body._update_stress()
    assert body.hourglass_force.abs().max() < 1e-3 * body.stress.abs().max() * 1e-3
    force = body.forces()
    torch.testing.assert_close(force.sum(dim=(2, 3)), torch.zeros(1, 2).double(), rtol=0, atol=1e-12)
    mixed = grid(3, 3)
    mixed[0, 0, 1, 1] += 0.1  # an hourglass that the middle of the elements does not see
    bent = still(grid(3, 3), replace(METAL, yield_stress=1e9))
    bent.position.copy_(mixed)
    bent._update_stress()
    assert bent.hourglass_force.abs().min() == 0 < bent.hourglass_force.abs().max()
