"""Fourier layers against sums over all modes, and what Fourier transforms leave unchanged."""

from math import prod

import pytest
import torch

from linearno.nn.deformation import Deformation, GridToPoints, PointsToGrid, waves_at
from linearno.nn.spectral import FactorisedSpectralConv, SpectralConv, require_resolved

GRIDS = {(11,): (4,), (9, 8): (3, 5), (8, 9): (4, 2), (6, 5, 7): (3, 2, 2)}  # points and modes of each axis


def grid_points(grid):
    """Points of the periodic unit cube (N, X), in C order."""
    axes = torch.meshgrid(*(torch.arange(n).double() / n for n in grid), indexing="ij")
    return torch.stack(axes, dim=-1).flatten(0, -2)


def frequencies(modes):
    """Kept frequencies (K, X), in the order of the weights."""
    axes = [torch.cat([torch.arange(m), torch.arange(-m, 0)]) for m in modes[:-1]] + [torch.arange(modes[-1])]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2).double()


def waves_of(points, k):
    """e^(2πi k·x), (…, N, K)."""
    return torch.exp(2j * torch.pi * (points @ k.T))


def weights(mixing):
    """(K, C, C), complex."""
    return torch.complex(*mixing.weight.flatten(1, -3))


def dense_spectral_conv(layer, h):
    """Every wave at every point; k > 0 on the last axis stands for −k too, unless it is Nyquist's."""
    grid = h.shape[2:]
    k = frequencies(layer.modes)
    waves = waves_of(grid_points(grid), k)
    twice = torch.where((k[:, -1] == 0) | (2 * k[:, -1] == grid[-1]), 1, 2)
    spectrum = torch.einsum("bcn,nk->kbc", h.flatten(2).to(waves), waves.conj()) @ weights(layer.mixing)
    out = torch.einsum("kbo,k,nk->bon", spectrum, twice.to(waves), waves).real / prod(grid)
    return out.unflatten(2, grid)


def random_weights(layer):
    """In place of the initial ones, which are tiny."""
    for weight in layer.parameters():
        torch.nn.init.normal_(weight)
    return layer


@pytest.mark.parametrize(("grid", "modes"), GRIDS.items())
def test_agrees_with_the_sum_over_waves_in_value_and_gradient(grid, modes):
    layer = random_weights(SpectralConv(3, modes).double())
    h = torch.randn(2, 3, *grid, dtype=torch.float64, requires_grad=True)
    fast, slow = layer(h), dense_spectral_conv(layer, h)
    torch.testing.assert_close(fast, slow)
    cotangent, leaves = torch.randn_like(fast), [h, *layer.parameters()]
    fast_grads = torch.autograd.grad(fast, leaves, cotangent)
    torch.testing.assert_close(fast_grads, torch.autograd.grad(slow, leaves, cotangent))


@pytest.mark.parametrize(("grid", "modes"), GRIDS.items())
def test_moving_a_periodic_field_moves_the_result(grid, modes):
    layer = random_weights(SpectralConv(2, modes).double())
    h = torch.randn(1, 2, *grid, dtype=torch.float64)
    axes, steps = tuple(range(2, h.dim())), (2, 3, 1)[: len(grid)]
    torch.testing.assert_close(layer(h.roll(steps, axes)), layer(h).roll(steps, axes))


def test_a_smooth_field_is_mapped_to_the_same_field_on_every_grid():
    layer = random_weights(SpectralConv(1, (3, 3)).double())

    def mapped(n):
        x, y = grid_points((n, n)).unflatten(0, (n, n)).unbind(-1)
        field = torch.cos(2 * torch.pi * (x + 2 * y)) + torch.sin(2 * torch.pi * (x - y))
        return layer(field[None, None])

    torch.testing.assert_close(mapped(24)[..., ::3, ::3], mapped(8))


@pytest.mark.parametrize(("grid", "modes"), [((7, 6), (4, 2)), ((5, 6, 8), (2, 4, 3))])
def test_factorised_layer_is_a_sum_of_layers_along_lines(grid, modes):
    layer = FactorisedSpectralConv(2, modes).double()
    h = torch.randn(2, *grid, 2, dtype=torch.float64)
    expected = torch.zeros_like(h)
    for axis, m in enumerate(modes):
        line = SpectralConv(2, (m,)).double()
        line.mixing.load_state_dict(layer.mixings[axis].state_dict())
        lines = h.movedim(1 + axis, -1)  # B … C n
        expected += line(lines.flatten(0, -3)).view_as(lines).movedim(-1, 1 + axis)
    torch.testing.assert_close(layer(h), expected)


def test_bf16_autocast_leaves_the_transform_in_float32():
    layer = random_weights(SpectralConv(2, (3, 3)))
    h = torch.randn(1, 2, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(h), layer(h.clone()))
        found = layer(h)
    assert found.dtype == torch.float32
    assert torch.equal(found, layer(h))


def test_modes_above_the_nyquist_frequency_are_refused():
    require_resolved((4, 5), (8, 8))
    require_resolved((5, 5), (8, 8), factorised=True)
    for modes in ((5, 5), (4, 6)):
        with pytest.raises(ValueError, match=r"\(8, 8\) points, padding included, resolves at most \(4, 5\)"):
            require_resolved(modes, (8, 8))


@pytest.fixture
def scattered():
    """Deformed points, and both transforms between 13 of them and a 9×8 grid."""
    points = torch.rand(2, 13, 2, dtype=torch.float64, requires_grad=True)
    there, back = PointsToGrid(3, (4, 3), (9, 8)).double(), GridToPoints(3, (4, 3)).double()
    return points, random_weights(there), random_weights(back)


def test_points_on_a_grid_are_transformed_as_the_grid(scattered):
    _, there, _ = scattered
    layer = SpectralConv(3, (4, 3)).double()
    layer.mixing.load_state_dict(there.mixing.state_dict())
    h = torch.randn(1, 3, 9, 8, dtype=torch.float64)
    waves = waves_at(grid_points((9, 8))[None], (4, 3))
    torch.testing.assert_close(there(h.flatten(2).mT, waves), layer(h))


def test_grid_to_points_is_the_published_sum(scattered):
    points, _, back = scattered
    h = torch.randn(2, 3, 9, 8, dtype=torch.float64, requires_grad=True)
    found = back(h, points, waves_at(points, (4, 3)))
    # as published: v of all k2 >= 0, joined with its conjugate in reverse order for k2 < 0
    k = frequencies((4, 3))
    waves = waves_of(grid_points((9, 8)), k)
    v = torch.einsum("bcn,nk->kbc", h.flatten(2).to(waves), waves.conj()) @ weights(back.mixing)
    v = v.unflatten(0, (8, 3))
    v = torch.cat([v, v[:, 1:].flip(0, 1).conj()], dim=1)
    rows, columns = k.unflatten(0, (8, 3))[:, 0, 0], torch.tensor([0, 1, 2, -2, -1]).double()
    k = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).flatten(0, 1)
    expected = torch.einsum("kbo,bnk->bno", v.flatten(0, 1), waves_of(points, k)).real
    torch.testing.assert_close(found, expected)
    leaves = [h, points, *back.parameters()]
    grads = [torch.autograd.grad(out.square().sum(), leaves, retain_graph=True) for out in (found, expected)]
    torch.testing.assert_close(*grads)


def test_a_deformation_that_adds_nothing_is_the_identity():
    deformation = Deformation(8, code=3).double()
    x, code = torch.rand(2, 5, 2, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
    assert not torch.allclose(deformation(x, code), x)
    torch.testing.assert_close(deformation(x, code)[:1], deformation(x[:1], code[:1]))
    torch.nn.init.zeros_(deformation.network[-1].weight)
    torch.nn.init.zeros_(deformation.network[-1].bias)
    assert torch.equal(deformation(x, code), x)
    with pytest.raises(ValueError, match="expected a multiple of 4"):
        Deformation(6)
