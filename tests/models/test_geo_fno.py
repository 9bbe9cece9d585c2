"""Geo-FNO on scattered points."""

import pytest
import torch

from linearno.core.errors import UserError
from linearno.models.geo_fno import GeoFNO
from linearno.nn.protocol import fixed_grid, needs_of
from linearno.ops.ragged import offsets_of


@pytest.fixture
def model():
    return GeoFNO(
        coords=2, inputs=1, outputs=2, grid=None, width=4, modes=3, depth=2, latent=9, code=3
    ).double()


def question(points):
    parts = torch.rand(2, points, 2), torch.rand(2, points, 1), torch.rand(2, 3)
    return [part.double() for part in parts]


def test_order_of_points_and_other_samples_change_nothing(model):
    x, a, code = question(11)
    order = torch.randperm(11)
    out = model(x, a, code=code)
    assert out.shape == (2, 11, 2)
    torch.testing.assert_close(model(x[:, order], a[:, order], code=code), out[:, order])
    torch.testing.assert_close(model(x[1:], a[1:], code=code[1:]), out[1:])


def test_packed_meshes_are_computed_as_each_by_itself(model):
    x, a, code = question(14)
    x.requires_grad_()
    sizes = [5, 9]
    parts = zip(x[0].split(sizes), a[0].split(sizes), code, strict=True)
    apart = torch.cat([model(x[None], a[None], code=c[None])[0] for x, a, c in parts])
    packed = model(x[:1], a[:1], code=code, segments=offsets_of(sizes))[0]
    torch.testing.assert_close(packed, apart)
    slopes = [torch.autograd.grad(out.square().sum(), x, retain_graph=True)[0] for out in (packed, apart)]
    torch.testing.assert_close(*slopes)


def test_the_shape_code_counts_and_is_a_need(model):
    x, a, code = question(6)
    assert needs_of(model) == ("code",)
    assert not torch.allclose(model(x, a, code=code), model(x, a, code=code + 1))
    with pytest.raises(UserError, match="takes a shape code of 3 channels"):
        model(x, a)
    with pytest.raises(UserError, match="a shape code is for scattered points"):
        GeoFNO(coords=2, outputs=1, grid=(20, 20), width=4, code=3)


def test_the_grid_of_the_data_decides_on_the_form():
    on_grid = GeoFNO(coords=2, outputs=1, grid=(20, 22), width=4)
    scattered = GeoFNO(coords=2, outputs=1, grid=None, width=4)
    assert (fixed_grid(on_grid), fixed_grid(scattered)) == ((20, 22), None)
    assert on_grid(torch.rand(1, 440, 2)).shape == scattered(torch.rand(1, 440, 2)).shape == (1, 440, 1)
