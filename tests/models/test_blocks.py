"""Inference by blocks of points is the same function as all at once."""

import pytest
import torch

from linearno import LinearNO, Transolver
from linearno.nn import layers

SMALL = {"width": 16, "depth": 2, "heads": 2, "slices": 5}


@pytest.mark.parametrize("model", [LinearNO, Transolver])
@pytest.mark.parametrize("grid", [None, (15, 20)])
def test_blocks_of_points_give_what_all_points_give(model, grid, monkeypatch):
    torch.manual_seed(0)
    settings = SMALL if grid is None else SMALL | {"stem": "conv", "grid": grid}
    net = model(coords=2, inputs=1, outputs=3, **settings)
    coords, inputs = torch.rand(2, 300, 2), torch.randn(2, 300, 1)
    whole = net(coords, inputs).detach()  # with gradients: all points at once
    monkeypatch.setitem(layers.BLOCK, "cpu", 1)  # 64 points at a time
    seen = []
    monkeypatch.setattr(net.head, "forward", lambda h, f=net.head.forward: seen.append(h.shape[1]) or f(h))
    before = coords.clone(), inputs.clone()
    with torch.no_grad():
        blocks = net(coords, inputs)
    assert seen == [64, 64, 64, 64, 44]
    torch.testing.assert_close(blocks, whole, rtol=1e-4, atol=1e-6)
    assert torch.equal(coords, before[0])
    assert torch.equal(inputs, before[1])
