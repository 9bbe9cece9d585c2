"""Factorised Fourier neural operator."""

import pytest
import torch

from linearno.core.errors import UserError
from linearno.models.f_fno import FFNO, FactorisedLayers, WeightNormLinear


def test_rows_of_a_weight_are_directions_with_lengths():
    layer = WeightNormLinear(5, 3).double()
    x = torch.randn(4, 5).double()
    plain = torch.nn.functional.linear(x, layer.direction, layer.bias)
    torch.testing.assert_close(layer(x), plain)  # as it starts
    layer.direction.data *= 7
    torch.testing.assert_close(layer(x), plain)
    layer.length.data *= 2
    torch.testing.assert_close(layer(x) - layer.bias, 2 * (plain - layer.bias))


def test_the_simplified_layers_are_linear_and_the_original_ones_are_not():
    h, g = torch.randn(2, 1, 3, 8, 7, dtype=torch.float64).unbind()
    for factor, linear in ((None, True), (2, False)):
        layers = FactorisedLayers(3, (3, 4), 2, factor).double()
        assert torch.allclose(layers(h + 2 * g), layers(h) + 2 * layers(g)) == linear


def test_the_original_form_predicts_from_the_last_branch():
    """Without its second linear layer the last branch is a bias, whatever the layers before it did."""
    layers = FactorisedLayers(3, (3, 4), 2, 2)
    torch.nn.init.zeros_(layers.feed_forward[1][2].length)
    out = layers(torch.randn(1, 3, 8, 7))
    torch.testing.assert_close(out, layers.feed_forward[1][2].bias.view(1, 3, 1, 1).expand_as(out))


@pytest.mark.parametrize("form", ["original", "simplified"])
def test_three_axes(form):
    model = FFNO(coords=3, inputs=1, outputs=2, grid=(6, 5, 4), width=4, modes=3, depth=1, form=form)
    assert model(torch.rand(2, 120, 3), torch.rand(2, 120, 1)).shape == (2, 120, 2)


def test_modes_above_the_nyquist_frequency_are_refused():
    FFNO(coords=2, outputs=1, grid=(8, 8), modes=9, form="simplified", width=4)
    with pytest.raises(UserError, match=r"\(16, 16\) points, padding included, resolves at most \(9, 9\)"):
        FFNO(coords=2, outputs=1, grid=(8, 8), modes=10, form="simplified", width=4)
