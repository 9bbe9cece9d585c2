from pathlib import Path

import numpy as np
import pytest
import torch

from linearno.core.errors import UserError
from linearno.ops import backend
from linearno.training.losses import LossConfig, central_differences, make_loss, require_loss
from tests.truths import batch_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FIXTURE = Path(__file__).parents[1] / "fixtures" / "losses.npz"


@pytest.fixture
def published():
    return {name: torch.from_numpy(np.asarray(value)) for name, value in np.load(FIXTURE).items()}


@pytest.fixture
def darcy(published):
    """Prediction, truth (B, N, 1) and the grid."""
    side = int(published["darcy/s"])
    prediction, truth = (published[f"darcy/{name}"].unsqueeze(-1) for name in ("pred", "true"))
    return prediction.requires_grad_(), truth, (side, side)


def test_without_a_gradient_term_it_is_the_published_relative_l2(darcy, published):
    prediction, truth, _ = darcy
    loss = make_loss(LossConfig(), None)(prediction, batch_of(truth))
    assert loss.item() == pytest.approx(published["darcy/l2"].item(), rel=1e-6)


def test_the_gradient_term_is_the_published_one(darcy, published):
    prediction, truth, grid = darcy
    plain = make_loss(LossConfig(), grid)(prediction, batch_of(truth))
    both = make_loss(LossConfig(gradient_weight=1.0), grid)(prediction, batch_of(truth))
    assert (both - plain).item() == pytest.approx(published["darcy/deriv"].item(), rel=1e-6)


def test_the_darcy_loss_and_its_gradient_are_the_published_ones(darcy, published):
    prediction, truth, grid = darcy
    loss = make_loss(LossConfig(gradient_weight=0.1), grid)(prediction, batch_of(truth))
    assert loss.item() == pytest.approx(published["darcy/loss"].item(), rel=1e-6)
    loss.backward()
    expected = published["darcy/grad_pred"].unsqueeze(-1)
    torch.testing.assert_close(prediction.grad, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())


@pytest.mark.parametrize("name", ["true", "pred"])
def test_central_differences_are_the_published_ones(darcy, published, name):
    prediction, truth, grid = darcy
    field = (truth if name == "true" else prediction).detach().unflatten(1, grid).clone()
    if name == "pred":  # its border ring counts as zero
        field[:, [0, -1]], field[:, :, [0, -1]] = 0, 0
    for slope, axis in zip(central_differences(field, "1/s"), "xy", strict=True):
        torch.testing.assert_close(slope, published[f"darcy/{name}_g{axis}"], rtol=1e-5, atol=1e-5)


def test_central_differences_of_a_plane_are_its_slopes_inside():
    rows, columns = 5, 8
    y, x = torch.meshgrid(torch.linspace(0, 1, rows), torch.linspace(0, 1, columns), indexing="ij")
    along_x, along_y = central_differences((2 * x - 3 * y)[None, ..., None], "1/(s-1)")
    torch.testing.assert_close(along_x[0, :, 1:-1, 0], torch.full((rows, columns - 2), 2.0))
    torch.testing.assert_close(along_y[0, 1:-1, :, 0], torch.full((rows - 2, columns), -3.0))


def test_the_spacing_cancels_in_the_relative_norm(darcy):
    prediction, truth, grid = darcy
    published, true = (
        make_loss(LossConfig(gradient_weight=0.1, spacing=spacing), grid)(prediction, batch_of(truth))
        for spacing in ("1/s", "1/(s-1)")
    )
    torch.testing.assert_close(published, true)


def test_mean_is_the_sum_over_the_batch_size(darcy):
    prediction, truth, grid = darcy
    total = make_loss(LossConfig(gradient_weight=0.1), grid)(prediction, batch_of(truth))
    mean = make_loss(LossConfig(gradient_weight=0.1, reduction="mean"), grid)(prediction, batch_of(truth))
    torch.testing.assert_close(mean * len(truth), total)


@pytest.mark.parametrize("grid", [None, (4, 4, 4)])
def test_a_gradient_term_needs_a_plane_grid(grid):
    with pytest.raises(UserError, match=r"2-D grid.*set it to 0"):
        require_loss(LossConfig(gradient_weight=0.1), grid)


@pytest.mark.parametrize("grid", [None, (4, 5), (7, 6)])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_fused_loss_is_the_plain_one(grid, channels, reduction):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    points = 1500 if grid is None else grid[0] * grid[1]  # more than a block of the kernel
    truth = 1 + torch.rand(3, points, channels, device=device)
    guess = (truth + 0.1 * torch.randn_like(truth)).requires_grad_()
    config = LossConfig(gradient_weight=0 if grid is None else 0.1, reduction=reduction)
    loss, found = make_loss(config, grid), []
    for how in ("plain", "kernel"):
        with backend(how):
            value = loss(guess, batch_of(truth))
        found.append((value.detach(), *torch.autograd.grad(value, guess)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-7)


def test_a_perfect_guess_has_no_loss_and_no_gradient():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    truth = torch.zeros(2, 6, 6, 1, device=device)
    truth[:, 1:-1, 1:-1] = 1  # zero on the border, which the slopes of a guess take to be so
    guess = truth.flatten(1, 2).clone().requires_grad_()
    with backend("kernel"):
        value = make_loss(LossConfig(gradient_weight=0.1), (6, 6))(guess, batch_of(truth.flatten(1, 2)))
    value.backward()
    assert value.item() == 0
    assert not guess.grad.any()


@pytest.mark.parametrize("how", ["plain", "kernel"])
def test_the_loss_of_a_packed_batch_is_the_sum_over_its_meshes(how):
    guess, truth = torch.randn(2, 1, 40, 2, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    guess.requires_grad_()
    loss, found = make_loss(LossConfig(), None), []
    pairs = list(zip(guess.split([3, 1, 36], 1), truth.split([3, 1, 36], 1), strict=True))
    with backend(how):
        whole = loss(guess, batch_of(truth, torch.tensor([0, 3, 4, 40])))
        for value in (whole, sum(loss(one, batch_of(other)) for one, other in pairs)):
            found.append((value, *torch.autograd.grad(value, guess)))
    torch.testing.assert_close(*found)


def test_a_scaled_loss_is_the_same_in_any_unit():
    torch.manual_seed(0)
    prediction, truth = torch.randn(2, 3, 11, 2, dtype=torch.float64)
    unit = torch.tensor([1e5, 1e-3], dtype=torch.float64)
    scale = truth.flatten(0, 1).std(dim=0)
    config = LossConfig(scaled=True)
    one = make_loss(config, None, scale)(prediction, batch_of(truth))
    other = make_loss(config, None, scale * unit)(prediction * unit, batch_of(truth * unit))
    torch.testing.assert_close(one, other)
    plain = make_loss(LossConfig(), None)(prediction * unit, batch_of(truth * unit))
    large = make_loss(LossConfig(), None)(prediction[..., :1], batch_of(truth[..., :1]))
    torch.testing.assert_close(plain, large)  # without a scale the larger unit is all that counts


@pytest.mark.parametrize("segments", [None, torch.tensor([0, 7, 11])])
def test_what_is_not_known_adds_nothing_to_a_loss_and_has_no_gradient(segments):
    torch.manual_seed(0)
    prediction, truth = torch.randn(2, 1, 11, 2, dtype=torch.float64)
    prediction.requires_grad_()
    known = torch.rand(truth.shape) > 0.4
    partial = truth.where(known, torch.nan)
    loss = make_loss(LossConfig(), None, partial=True)(prediction, batch_of(partial, segments))
    expected = make_loss(LossConfig(), None)(prediction * known, batch_of(truth * known, segments))
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert prediction.grad.isfinite().all()
    assert (prediction.grad[~known] == 0).all()
