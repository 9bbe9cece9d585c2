"""The optimiser whose step is three kernels is PyTorch's own, to rounding."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from linearno.core.errors import UserError
from linearno.core.randomness import torch_generator
from linearno.ops import WeightCache, backend
from linearno.ops.weight_cache import cached_inverse, cached_ones, cast_weight
from linearno.training import TrainingConfig
from linearno.training.checkpoint import load_optimizer, pack_optimizer
from linearno.training.flat_adam import FlatAdam, flat_refusal
from linearno.training.optimizer import apply_gradients, make_optimizer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Odd(nn.Module):
    """Sizes that fit no tile, a convolution in channels-last order, and a parameter that is never used."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.linear = nn.Linear(7, 3)
        self.scale = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(4))
        self.conv.weight.data = self.conv.weight.data.to(memory_format=torch.channels_last)


def build(how, config):
    torch.manual_seed(0)
    model = Odd().to(DEVICE)
    with backend(how):
        return model, make_optimizer(model, config)


def steps(model, optimizer, schedule, count, *, first=0):
    norms = []
    for step in range(first, first + count):
        for place, (name, weight) in enumerate(model.named_parameters()):
            if name != "unused":
                drawn = torch.randn(weight.shape, generator=torch_generator(step, place))
                weight.grad = torch.empty_like(weight).copy_(drawn)
        if isinstance(optimizer, FlatAdam):
            optimizer.prepare()
        norms.append(apply_gradients(model, optimizer, 1.0).item())
        schedule.step()
    return norms


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_run_with_clipping_decay_and_a_cycle_of_rate_and_momentum_is_pytorchs(kind):
    config = TrainingConfig(optimizer=kind, weight_decay=0.1, lr=1e-2, clip=1.0)
    found = []
    for how in ("plain", "kernel"):
        model, optimizer = build(how, config)
        norms = steps(model, optimizer, OneCycleLR(optimizer, 1e-2, total_steps=9), 8)
        found.append((norms, {name: weight.detach().clone() for name, weight in model.named_parameters()}))
    assert isinstance(optimizer, FlatAdam)
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ways", [("plain", "kernel"), ("kernel", "plain"), ("kernel", "kernel")], ids=str)
def test_a_run_may_change_the_optimiser_between_two_steps(ways):
    """As when it begins on a CPU and goes on on a GPU, through a checkpoint."""
    config = TrainingConfig(weight_decay=0.1, lr=1e-2)
    model, optimizer = build("plain", config)
    steps(model, optimizer, OneCycleLR(optimizer, 1e-2, total_steps=9), 8)
    whole = {name: weight.detach() for name, weight in model.named_parameters()}
    model, optimizer = build(ways[0], config)
    schedule = OneCycleLR(optimizer, 1e-2, total_steps=9)
    steps(model, optimizer, schedule, 4)
    names = [name for name, _ in model.named_parameters()]
    tensors, groups = pack_optimizer(optimizer, names)
    other, optimizer = build(ways[1], config)
    after = OneCycleLR(optimizer, 1e-2, total_steps=9)
    other.load_state_dict(model.state_dict())
    load_optimizer(optimizer, names, tensors, groups)
    after.load_state_dict(schedule.state_dict())
    steps(other, optimizer, after, 4, first=4)
    torch.testing.assert_close(
        {name: weight.detach() for name, weight in other.named_parameters()}, whole, rtol=1e-5, atol=1e-6
    )


def test_casts_follow_the_weights_wherever_they_lie():
    config = TrainingConfig()
    model, optimizer = build("kernel", config)
    cache = WeightCache(model.parameters(), torch.bfloat16)
    schedule = OneCycleLR(optimizer, 1e-2, total_steps=9)
    for _ in range(3):  # the first step moves the weights into flat memory
        with cache.activate():
            for weight in model.parameters():
                copy = cast_weight(weight, torch.bfloat16)
                assert copy.stride() == weight.stride()
                torch.testing.assert_close(copy, weight.detach().bfloat16())
                assert cast_weight(weight, torch.bfloat16) is copy
        steps(model, optimizer, schedule, 1)
    assert cast_weight(weight, torch.bfloat16) is not copy  # no longer active


def test_inverses_of_temperatures_follow_them_from_the_second_step_on():
    temperatures = [torch.nn.Parameter(torch.tensor([0.05, 0.5, 7.0]) + i) for i in range(2)]
    cache = WeightCache(temperatures, torch.bfloat16)
    for step in range(3):
        with cache.activate():
            for t in temperatures:
                cached_inverse(t, 0.1, 5.0)  # by the first of two that share it
                found = [cached_inverse(t, 0.1, 5.0), cached_inverse(t, -torch.inf, torch.inf)]
                if step == 0:
                    assert found == [None, None]
                else:
                    torch.testing.assert_close(found, [1 / t.detach().clamp(0.1, 5.0), 1 / t.detach()])
                t.data.mul_(1.5)
            assert cached_inverse(torch.ones(3), 0.1, 5.0) is None  # not one of them
    assert cached_inverse(temperatures[0], 0.1, 5.0) is None  # no longer active


def test_ones_in_place_of_temperatures_are_made_once_for_all_layers_and_steps():
    cache, x = (
        WeightCache([torch.nn.Parameter(torch.zeros(2))], torch.bfloat16),
        torch.zeros(1, dtype=torch.bfloat16),
    )
    with cache.activate():
        first = cached_ones(x, 8)
    with cache.activate():
        assert cached_ones(x, 8) is first
        torch.testing.assert_close(cached_ones(x, 4), torch.ones(4))
    torch.testing.assert_close(cached_ones(x, 8), torch.ones(8))
    assert cached_ones(x, 8) is not first  # no longer active


def parameters(*values):
    return [nn.Parameter(value, requires_grad=value.is_floating_point()) for value in values]


FLAT = torch.zeros(12)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([torch.zeros(3), torch.zeros(3, dtype=torch.complex64)], "weights are torch.complex64"),
        ([torch.zeros(3), torch.zeros(3, dtype=torch.float64)], "weights are torch.float64"),
        ([torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3)], "weights are torch.bfloat16"),
        ([torch.zeros(3), torch.zeros(3, device="meta")], "weights are on meta and cpu"),
        ([torch.zeros(1, 3).expand(4, 3)], "weights overlap or leave gaps in memory"),
        ([torch.zeros(4, 6)[:, ::2]], "weights overlap or leave gaps in memory"),
        ([FLAT[:8], FLAT[7:]], "weights share memory"),
        ([FLAT[:8], FLAT[8:]], None),
        ([torch.zeros(3, 5).T, torch.zeros(()), torch.zeros(0, 4), torch.zeros(2, 1, 3)], None),
        ([torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)], None),
    ],
)
def test_weights_that_cannot_lie_flat_are_refused(values, reason):
    assert flat_refusal(parameters(*values)) == reason


def test_a_model_with_complex_weights_trains_with_pytorchs_optimiser():
    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.real = nn.Parameter(torch.ones(3))
            self.modes = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    model = Spectral().to(DEVICE)
    with backend("kernel"), pytest.raises(UserError, match=r"adam: weights are torch\.complex64"):
        make_optimizer(model, TrainingConfig())
    optimizer = make_optimizer(model, TrainingConfig())
    assert not isinstance(optimizer, FlatAdam)
    (model.modes * model.real).abs().sum().backward()
    apply_gradients(model, optimizer, 1.0)
    assert (model.modes.detach() != 1).all()


def test_a_step_captured_before_weights_or_moments_moved_is_known_to_be_stale():
    model, optimizer = build("kernel", TrainingConfig())
    layouts = [optimizer.layout]
    for _ in range(2):
        steps(model, optimizer, OneCycleLR(optimizer, 1e-2, total_steps=9), 2)
        layouts.append(optimizer.layout)
    assert layouts[0] != layouts[1] == layouts[2]
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.layout not in layouts
