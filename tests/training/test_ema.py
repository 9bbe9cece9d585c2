import pytest
import torch
from tiny_run import Tiny

from linearno.training.ema import Ema


def test_the_average_is_the_weighted_sum_of_all_weights_so_far():
    """w̄ₙ = dⁿ w₀ + (1 − d) Σ dⁿ⁻ᵏ wₖ."""
    model, decay = torch.nn.Linear(1, 1, bias=False), 0.9
    torch.nn.init.constant_(model.weight, 0.7)
    ema = Ema(model, decay)
    values = [model.weight.item(), 2.0, -3.0, 5.0]
    for value in values[1:]:
        torch.nn.init.constant_(model.weight, value)
        ema.update(model)
    expected = decay**3 * values[0] + (1 - decay) * sum(decay ** (3 - k) * values[k] for k in (1, 2, 3))
    assert ema.weights["weight"].item() == pytest.approx(expected, rel=1e-6)


def test_swapped_weights_come_back_to_the_bit():
    model = Tiny()
    ema = Ema(model, 0.5)
    torch.nn.init.normal_(model.layers[0].weight)
    own = model.layers[0].weight.detach().clone()
    with ema.swapped_into(model):
        assert torch.equal(model.layers[0].weight, ema.weights["layers.0.weight"])
        assert not torch.equal(model.layers[0].weight, own)
    assert torch.equal(model.layers[0].weight, own)
