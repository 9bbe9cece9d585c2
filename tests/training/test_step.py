import math

import pytest
import torch
from tiny_run import CPU, SPEC, Tiny, tiny_data
from torch.optim import SGD

from linearno.data.scaler import Scaler
from linearno.training import LossConfig, TrainingConfig, TrainingSetup
from linearno.training.trainer import Trainer


def step(samples, *, model=None, lr=0.0, **settings):
    """One step of plain gradient descent over the first samples, in batches of `batch`."""
    model = model or Tiny().eval()  # eval: no dropout
    return model, *trainer(model, lr, **settings).update(torch.arange(samples))


def trainer(model, lr=0.0, **settings):
    """Steps are plain gradient descent."""
    data, config = tiny_data(), TrainingConfig(schedule="constant", **settings)
    setup = TrainingSetup(model, Scaler.fit(SPEC, data.everything()), data, config)
    return Trainer(setup, CPU, optimizer=lambda model, config: SGD(model.parameters(), lr))


def gradients(model):
    return [weight.grad for weight in model.parameters()]


def norm(tensors):
    return math.sqrt(sum(tensor.square().sum().item() for tensor in tensors))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("batch", [2, 3])  # 7 = 2 + 2 + 2 + 1 = 3 + 3 + 1
def test_small_batches_together_give_the_gradient_of_one_large_batch(reduction, batch):
    loss = LossConfig(reduction=reduction, gradient_weight=0.1)
    parts, part_loss, _ = step(7, batch=batch, loss=loss, clip=None)
    whole, whole_loss, _ = step(7, batch=7, loss=loss, clip=None)
    torch.testing.assert_close(gradients(parts), gradients(whole), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(part_loss, whole_loss)


def test_summed_losses_give_the_mean_gradient_times_the_batch():
    total, total_loss, _ = step(6, batch=3, clip=None)
    mean, mean_loss, _ = step(6, batch=3, clip=None, loss=LossConfig(reduction="mean"))
    torch.testing.assert_close([g / 6 for g in gradients(total)], gradients(mean))
    torch.testing.assert_close(total_loss, mean_loss)  # both are reported per sample


def test_the_loss_is_in_physical_units():
    """Targets lie around 100: a prediction of their mean is within a few percent of them."""
    _, loss, _ = step(6, batch=6)
    assert loss < 0.2


def test_clipping_shortens_the_step_to_the_clip_and_keeps_its_direction():
    before, (model, _, grad_norm) = Tiny().eval(), step(4, lr=1.0, clip=1e-3)
    moves = [(new - old).detach() for new, old in zip(model.parameters(), before.parameters(), strict=True)]
    assert grad_norm > 1e-2
    assert norm(moves) == pytest.approx(1e-3, rel=1e-3)
    free, _, free_norm = step(4, clip=None)
    assert free_norm == grad_norm == pytest.approx(norm(gradients(free)), rel=1e-6)
    expected = [-gradient * 1e-3 / free_norm for gradient in gradients(free)]
    torch.testing.assert_close(moves, expected, rtol=1e-2, atol=1e-7)


def test_a_gradient_below_the_clip_is_left_alone():
    free, _, free_norm = step(4, clip=None)
    clipped, _, _ = step(4, clip=10 * free_norm.item())
    torch.testing.assert_close(gradients(clipped), gradients(free), rtol=0, atol=0)


def test_bf16_ends_with_the_network_and_the_loss_is_fp32():
    seen = []
    model = Tiny()
    model.register_forward_hook(lambda module, given, answer: seen.append(answer.dtype))

    def loss(prediction, batch):
        seen.append(prediction.dtype)
        return (prediction - batch.targets).square().sum()

    one = trainer(model, 0.1, precision="bf16")
    one.loss = loss
    one.update(torch.arange(2))
    assert seen == [torch.bfloat16, torch.float32]
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
