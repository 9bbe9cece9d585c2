"""Attention along one axis after the other is attention with the Kronecker product of the kernels."""

import pytest
import torch

from linearno.core.errors import UserError
from linearno.nn.factorised_attention import FactorisedAttention, dense_mix, mix_axis


def random_kernels(grid, heads=3, head_width=4):
    shapes = [(2, heads, points, head_width) for points in grid]
    return [tuple(torch.randn(s, dtype=torch.float64, requires_grad=True) for _ in range(2)) for s in shapes]


@pytest.mark.parametrize("grid", [(7,), (7, 5), (3, 5, 4)])
def test_mixing_each_axis_is_a_product_with_the_kernel_over_all_points(grid):
    torch.manual_seed(0)
    kernels = random_kernels(grid)
    values = torch.randn(2, 3, *grid, 6, dtype=torch.float64, requires_grad=True)
    mixed = values
    for axis, (query, key) in enumerate(kernels):
        mixed = mix_axis(query, key, mixed, axis)
    expected = dense_mix(kernels, values)
    torch.testing.assert_close(mixed, expected)
    arguments = [values, *(part for kernel in kernels for part in kernel)]
    cotangent = torch.randn_like(mixed)
    found, dense = (torch.autograd.grad(out, arguments, cotangent) for out in (mixed, expected))
    torch.testing.assert_close(found, dense)


def test_constant_values_pass_unchanged():
    torch.manual_seed(0)
    values = torch.ones(2, 3, 7, 5, 6, dtype=torch.float64)
    for axis, kernel in enumerate(random_kernels((7, 5))):
        values = mix_axis(*kernel, values, axis)
    torch.testing.assert_close(values, torch.ones_like(values))


def test_exchanging_the_axes_of_the_grid_exchanges_those_of_the_output():
    torch.manual_seed(0)
    layer = FactorisedAttention(12, 3, (7, 5)).double()
    exchanged = FactorisedAttention(12, 3, (5, 7)).double()
    names = {"axes.0": "axes.1", "axes.1": "axes.0"}
    weights = {names.get(name[:6], name[:6]) + name[6:]: part for name, part in layer.state_dict().items()}
    exchanged.load_state_dict(weights)
    h = torch.randn(2, 7, 5, 12, dtype=torch.float64)
    expected = layer(h.flatten(1, 2)).unflatten(1, (7, 5)).transpose(1, 2)
    found = exchanged(h.transpose(1, 2).flatten(1, 2)).unflatten(1, (5, 7))
    torch.testing.assert_close(found, expected)


def test_features_of_another_grid_are_refused():
    with pytest.raises(UserError, match=r"built for the grid \(7, 5\) = 35 points, got 36"):
        FactorisedAttention(12, 3, (7, 5))(torch.randn(2, 36, 12))
