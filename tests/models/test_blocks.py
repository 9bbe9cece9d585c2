"""Inference by blocks of points is the same function as all at once."""

import pytest
import torch

from linearno import CrossLinearNO, LinearNO, Transolver
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
    monkeypatch.setitem(layers.BLOCK_ELEMENTS, "cpu", 1)  # 64 points at a time
    seen = []
    lift = net.lift.forward
    monkeypatch.setattr(net.lift, "forward", lambda z, shift: seen.append(z.shape[1]) or lift(z, shift))
    before = coords.clone(), inputs.clone()
    with torch.no_grad():
        blocks = net(coords, inputs)
    assert seen == [64, 64, 64, 64, 44]
    torch.testing.assert_close(blocks, whole, rtol=1e-4, atol=1e-6)
    assert torch.equal(coords, before[0])
    assert torch.equal(inputs, before[1])


@pytest.mark.parametrize("model", [LinearNO, Transolver, CrossLinearNO])
def test_blocks_run_again_in_the_backward_pass_give_the_same_gradients_and_keep_less(model):
    torch.manual_seed(0)
    built = model(coords=2, inputs=1, outputs=1, width=16, depth=3, heads=2, slices=5)
    coords, inputs = torch.rand(2, 40, 2), torch.rand(2, 40, 1)
    found = []
    for built.recompute in (False, True):
        kept = []
        built.zero_grad()

        def keep(tensor, kept=kept):
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = built(coords, inputs)
        out.square().sum().backward()
        grads = {name: weight.grad for name, weight in built.named_parameters() if weight.grad is not None}
        found.append((sum(kept), out.detach(), grads))
    assert found[1][0] < found[0][0] / 2
    torch.testing.assert_close(found[1][1:], found[0][1:])
