"""The forging of the benchmark: contact, meshes and steps, what is known of the published file, refusals."""

import subprocess
import sys
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch

from linearno.core.errors import SampleError, UserError
from linearno.solvers import forging
from linearno.solvers.forging import (
    HEIGHT,
    LENGTH,
    RIGHT,
    STEEL,
    TOP,
    Press,
    block_nodes,
    build_die,
    die_spline,
    draw_die,
    node_rows,
    plasticity_samples,
    solve_forging,
)
from tests.solvers.energies import energies

REFERENCE = Path(__file__).parents[1] / "fixtures" / "forging.npz"
HEAVY = replace(STEEL, density=25 * STEEL.density)  # a fifth of the steps, and still slow beside its waves
BLUNT = torch.tensor([[20.0, 17.5, 15.5, 15.0, 15.5, 17.5, 19.0, 19.5, 20.0]])

BETWEEN = torch.tensor([[35.0, 35, 21, 35, 35, 21, 21, 35, 35]])  # lowest between two knots


def test_under_a_flat_die_the_block_widens_as_an_incompressible_one_in_plane_stress():
    """Width and thickness grow alike: L' = L √(H/H')."""
    frames = solve_forging(torch.full((1, 4), TOP), 11, material=HEAVY, frames=10)
    positions = frames[0, 2:-2, :, -1]  # the ends grow out from under the die
    height = HEIGHT - 9 * 0.3
    np.testing.assert_allclose(positions[:, 0, 1] - positions[:, -1, 1], height, rtol=1e-3)
    np.testing.assert_allclose(
        positions[:-1, :, 0] - positions[1:, :, 0], 5 * sqrt(HEIGHT / height), rtol=0.01
    )
    np.testing.assert_allclose(np.diff(positions[..., 1]), -height / 3, rtol=0.02)


class Watched(Press):
    """Counts the work of the die, and how far the top of the block was inside it."""

    work = deepest = 0.0

    def add_contact_forces(self, position, force):
        before = force.clone()
        super().add_contact_forces(position, force)
        pushed = force - before
        after = self.body.velocity + self.body.dt_over_mass * force
        after[:, 1, :, -1] = 0
        self.work += (pushed * (self.body.velocity + after)).sum().item() / 2 * self.body.dt
        above, _ = self.die.penetration(position[:, 0, :, 0], position[:, 1, :, 0] + self.die_travel)
        self.deepest = max(self.deepest, above.max().item())


def test_the_work_of_the_die_becomes_energy_and_nothing_gets_into_it(monkeypatch):
    presses = []
    monkeypatch.setattr(
        forging, "Press", lambda *args, **more: presses.append(Watched(*args, **more)) or presses[-1]
    )
    solve_forging(BLUNT, 21, material=HEAVY, frames=8)
    (press,) = presses
    kinetic, elastic, plastic, bending = energies(press.body)
    stored = kinetic + elastic + plastic + bending
    assert kinetic + elastic + bending < 0.1 * plastic
    assert 0.93 * press.work < stored < 1.005 * press.work  # the rest went into viscosity
    assert press.deepest < 0.005 * press.body.spacing


@pytest.fixture(scope="module")
def coarse():
    return solve_forging(BLUNT, 11, material=HEAVY, frames=8)


def error_to_reference(positions):
    """Relative L2 of the displacement at the nodes of the coarsest mesh, in a blunt die, after 2.1 mm."""
    every = (positions.shape[1] - 1) // 10
    moved = (positions - positions[..., :1, :])[0, ::every, ::every, -1].numpy()
    with np.load(REFERENCE) as file:
        return np.linalg.norm(moved - file["moved"]) / np.linalg.norm(file["moved"])


def test_finer_meshes_come_nearer_to_the_converged_reference(coarse):
    errors = [
        error_to_reference(coarse),
        error_to_reference(solve_forging(BLUNT, 21, material=HEAVY, frames=8)),
    ]
    assert errors[1] < 0.6 * errors[0], errors
    assert errors[1] < 0.2, errors


def test_a_block_slides_with_its_nodes_and_the_less_the_finer_they_are():
    """Under a die that is the same to both sides a block stays. What it slides by where the die stands
    between two nodes is the mesh's doing."""

    def slid(nodes, part):
        x = torch.linspace(RIGHT - LENGTH, RIGHT, 9, dtype=torch.float64)
        middle = RIGHT - LENGTH / 2 + part * LENGTH / (nodes - 1)
        frames = solve_forging(15 + 0.03 * (x - middle)[None] ** 2, nodes, material=HEAVY, frames=8)
        return (frames[0, ..., -1, 0] - frames[0, ..., 0, 0]).mean().item()

    assert abs(slid(21, 0)) < 1e-9
    assert 0 < 3 * slid(21, 0.25) < slid(11, 0.25) < 0.05


def test_the_fine_scheme_keeps_every_other_node_of_a_mesh_twice_as_fine(monkeypatch):
    monkeypatch.setattr(forging, "FRAMES", 4)
    monkeypatch.setattr(forging, "STEEL", HEAVY)

    def make(resolution, scheme):
        rngs = [np.random.default_rng(seed) for seed in (4, 5)]
        return plasticity_samples(rngs, resolution, torch.device("cpu"), scheme=scheme)

    fine, plain, finer = make(11, "fine"), make(11, "plain"), make(21, "plain")
    np.testing.assert_array_equal(fine[0], plain[0])
    np.testing.assert_array_equal(fine[1], finer[1][:, ::2, ::2])
    assert fine[1].shape == plain[1].shape == (2, 11, 4, 4, 4)
    assert 0.01 < np.abs(fine[1] - plain[1]).max() < 1
    with pytest.raises(UserError, match="unknown scheme 'fin'; did you mean 'fine'"):
        make(11, "fin")


def test_shorter_steps_that_need_no_added_mass_change_little(monkeypatch):
    """A sharp die: the usual steps need heavier elements where they are thin, short ones do not."""
    presses = []
    monkeypatch.setattr(
        forging, "Press", lambda *args, **more: presses.append(Press(*args, **more)) or presses[-1]
    )
    sharp = torch.from_numpy(draw_die(np.random.default_rng(3)))[None]
    usual, light = (solve_forging(sharp, 11, material=HEAVY, frames=14, step=step) for step in (0.6, 0.3))
    added = [
        (1 / press.body.dt_over_mass).sum().item() * press.body.dt / 750 / HEAVY.density for press in presses
    ]
    assert added[0] > 1.005
    assert added[1] == pytest.approx(1)
    assert ((usual - light).norm() / (light - light[..., :1, :]).norm()).item() < 0.02


def test_the_forging_has_the_facts_of_the_published_file(coarse):
    assert (block_nodes(101).shape, node_rows(101)) == ((2, 101, 31), 31)
    x, y = block_nodes(101)
    assert (x[0, 0].item(), x[-1, 0].item()) == (0.35, pytest.approx(-49.65))
    assert (y[0, 0].item(), y[0, -1].item()) == (14.9, pytest.approx(-0.1))
    assert torch.equal(coarse[0, :, :, 0], block_nodes(11).permute(1, 2, 0))
    assert (coarse[0, :, -1, :, 1] - coarse[0, :, -1, :1, 1]).abs().max() == 0  # on a plane
    assert (coarse[0, :, -1, -1, 0] - coarse[0, :, -1, 0, 0]).abs().max() > 0.01  # but it slides
    sunk = (coarse[0, :, 0, :, 1].amin(dim=0) - TOP).numpy()
    np.testing.assert_allclose(sunk[2:], 0.1 - 0.3 * np.arange(2, 8), atol=0.1)


def test_beyond_the_ends_of_the_block_at_rest_there_is_no_die():
    """A spline goes on beyond its last knots, here far below the points."""
    die = build_die(torch.tensor([[15.0, 16, 16, 16, 16, 16, 16, 16, 15]], dtype=torch.float64))
    x = torch.tensor([[-52.0, -49.6, 0.3, 3.0]], dtype=torch.float64)
    above, _ = die.penetration(x, torch.full_like(x, 15.5))
    assert (above > 0).tolist() == [[False, True, True, False]]


def test_points_move_by_about_as_much_as_the_published_ones():
    """5.5 mm at most or so: the die moves by 5.7 and begins 0.1 above the block."""
    rngs = [np.random.default_rng(seed) for seed in range(6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forging, "STEEL", HEAVY)
        _, output, _ = plasticity_samples(rngs, 21, torch.device("cpu"))
    largest = np.linalg.norm(output[..., 2:], axis=-1).max(axis=(1, 2, 3))
    assert (largest > 5.4).all()
    assert (largest < 6).all()


def test_random_dies_have_the_published_shape():
    heights = np.stack([draw_die(np.random.default_rng(seed)) for seed in range(300)])
    curves = die_spline(heights)(np.linspace(-49.65, 0.35, 1001))
    lowest, inner = curves.min(axis=1), np.sort(heights[:, 1:-1] - heights.min(axis=1, keepdims=True))[:, 1:]
    np.testing.assert_allclose(lowest, 15.0, atol=1e-12)
    for end in (0, -1):
        np.testing.assert_allclose(heights[:, end] - heights.min(axis=1), 7.5)
        assert (heights[:, end] - lowest).max() <= 7.6 + 1e-9
    assert 1.7 <= inner.min() < 1.9
    assert 7.6 < inner.max() <= 7.8
    assert inner.mean() == pytest.approx(5.0, abs=0.4)
    assert set(heights.argmin(axis=1)) == {2, 3, 4, 5, 6}  # next to an end it would throw the block aside
    assert 9 < (curves - lowest[:, None]).max() < 12
    outwards = np.concatenate([-die_spline(heights)(-49.65, 1), die_spline(heights)(0.35, 1)])
    np.testing.assert_allclose(np.percentile(outwards, [2, 98]), [-2.2, 3.1], atol=0.2)


@pytest.mark.usefixtures("one_thread")
def test_a_sample_does_not_depend_on_its_batch_and_follows_its_generator():
    def make(seeds):
        return plasticity_samples([np.random.default_rng(s) for s in seeds], 11, torch.device("cpu"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forging, "FRAMES", 4)
        patch.setattr(forging, "STEEL", HEAVY)
        together, alone = make([4, 5]), make([5])
    for both, one in zip(together, alone, strict=True):
        np.testing.assert_array_equal(both[1:], one)
    given, output, draws = together
    assert (given.shape, output.shape, draws.tolist()) == ((2, 11), (2, 11, 4, 4, 4), [1, 1])
    np.testing.assert_allclose(given[0, 1], die_spline(draw_die(np.random.default_rng(4)))(-44.65))
    np.testing.assert_array_equal(output[..., :1, 2:], 0)
    np.testing.assert_allclose(output[..., :2] - output[..., 2:], output[..., :1, :2].repeat(4, 3), atol=1e-5)


def test_a_die_that_folds_elements_is_named_or_drawn_again(monkeypatch, caplog):
    monkeypatch.setattr(forging, "PENALTY", 5000.0)  # far too stiff for the step
    with pytest.raises(SampleError, match="elements fold or are not finite within 4 frames") as caught:
        solve_forging(torch.cat([BLUNT + 9, BLUNT]), 11, material=HEAVY, frames=4)
    assert caught.value.index == 1
    calls = []

    def fails_once(heights, *settings):
        calls.append(len(heights))
        positions, solved = (
            torch.zeros(len(heights), 11, 4, 20, 2),
            torch.ones(len(heights), dtype=torch.bool),
        )
        solved[-1] = len(calls) > 1
        return positions, solved

    monkeypatch.setattr(forging, "_forge", fails_once)
    rngs = [np.random.default_rng(seed) for seed in (0, 1)]
    assert plasticity_samples(rngs, 11, torch.device("cpu"))[2].tolist() == [1, 2]
    assert calls == [2, 1]
    assert "elements fold in 1 of 2 blocks at draw 1" in caplog.text
    monkeypatch.setattr(
        forging, "_forge", lambda h, *s: (torch.zeros(len(h), 11, 4, 20, 2), torch.zeros(len(h)).bool())
    )
    with pytest.raises(SampleError, match="under 5 random dies"):
        plasticity_samples(rngs, 11, torch.device("cpu"))


def test_a_block_that_bursts_is_named():
    with pytest.raises(SampleError, match="sample 0: elements fold or are not finite"):
        solve_forging(BLUNT, 11, material=replace(HEAVY, yield_stress=0.0), frames=4)


@pytest.mark.parametrize(
    ("heights", "settings", "complaint"),
    [
        (torch.zeros(3), {}, r"expected heights \(samples, knots\) with 4 knots or more, got \(3,\)"),
        (BLUNT * torch.nan, {}, "expected a finite die"),
        (BLUNT - 1, {}, r"starts at 14 mm, inside the block; expected 14.9 or more"),
        (BLUNT, {"resolution": 12}, r"resolution 12 does not fit; expected 10 k \+ 1 nodes .* 11, 21"),
        (BLUNT, {"step": 0.9}, "expected 0 < step < 0.7"),
        (BLUNT, {"frames": 0}, "frames ≥ 1"),
        (BLUNT, {"travel": torch.inf}, "a finite travel ≥ 0"),
        (BLUNT, {"travel": 16.0}, r"sample 0: the die reaches -0.2\d* mm, but the plane .* is at -0.1 mm"),
        (torch.cat([BLUNT + 9, BLUNT + 5, BLUNT]), {"travel": 22.0}, r"sample 1: the die reaches -0.9\d* mm"),
        (BETWEEN, {"travel": 21.0}, r"sample 0: the die reaches -1.46 mm"),
    ],
)
def test_what_cannot_be_forged_is_reported_in_one_line(heights, settings, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        solve_forging(heights, **({"resolution": 11} | settings))
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recorded_step_on_a_gpu_forges_as_the_cpu_does(coarse):
    there = solve_forging(BLUNT.cuda(), 11, material=HEAVY, frames=8).cpu()
    torch.testing.assert_close(there, coarse, rtol=0, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_compiled_step_on_a_gpu_forges_as_the_cpu_does(coarse, tmp_path):
    """In a process of its own: not every compiler reads functions whose arguments are checked, as here."""
    code = f"""
import dataclasses, torch
from linearno.solvers import forging
forging.MIN_COMPILED_STEPS["cuda"] = 0
heights = torch.tensor({BLUNT.tolist()}, device="cuda")
heavy = dataclasses.replace(forging.STEEL, density={HEAVY.density})
found = forging.solve_forging(torch.cat([heights, heights + 0.5]), 11, material=heavy, frames=8)
torch.save(found.cpu(), {str(tmp_path / "found.pt")!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "not compiled" not in done.stderr
    torch.testing.assert_close(torch.load(tmp_path / "found.pt")[:1], coarse, rtol=0, atol=1e-4)


def write_reference() -> None:
    """The converged case, to be kept: `python -m tests.solvers.test_forging`, some minutes."""
    positions = solve_forging(BLUNT, 161, material=HEAVY, frames=8, step=0.4)
    moved = (positions - positions[..., :1, :])[0, ::16, ::16, -1].numpy()
    np.savez_compressed(REFERENCE, moved=moved.astype(np.float32), heights=BLUNT.numpy())


if __name__ == "__main__":
    write_reference()
