"""Training compiled with `fullgraph=True`, and eager: `python compiled_run.py aot_eager model linearno`.

Run by itself: the checks of shapes in tests are no code for a compiler. Fails where a graph breaks, where a
second step compiles again, or where numbers differ.
"""

import copy
import sys

import torch

from linearno import CrossLinearNO, LinearNO, Transolver
from linearno.data import Batch
from linearno.models.pointnet import PointNet
from linearno.training import LossConfig
from linearno.training.losses import make_loss

SMALL = {"width": 16, "depth": 1, "heads": 2, "slices": 6}
MODELS = {
    "linearno": lambda: LinearNO(coords=2, inputs=1, outputs=1, time=True, **SMALL),
    "linearno-grid": lambda: LinearNO(coords=2, inputs=1, outputs=1, stem="conv", grid=(5, 7), **SMALL),
    "transolver": lambda: Transolver(coords=2, inputs=1, outputs=1, **SMALL),
    "cross-linearno": lambda: CrossLinearNO(coords=2, inputs=1, outputs=1, **SMALL),
    "linearno-packed": lambda: LinearNO(coords=2, inputs=1, outputs=1, time=True, **SMALL),
    "pointnet-packed": lambda: PointNet(coords=2, inputs=1, outputs=1, width=2),
}
SEGMENTS = (0, 12, 35)  # integers: a compiled graph cannot read them out of a tensor


def steps(model, measure, more):
    """Losses of two steps; the model keeps the gradients of the last. `more` are arguments of the model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, samples = [], 1 if more else 2
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        coords, inputs, truth = (torch.rand(samples, 35, n, generator=generator) for n in (2, 1, 1))
        if getattr(model, "time", None):
            more = more | {"time": torch.rand(2, 1, generator=generator)}
        optimizer.zero_grad()
        loss = measure(coords, inputs, truth, **more)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def check(name, backend, *, whole_step):
    torch.manual_seed(0)
    torch._dynamo.reset()
    eager = MODELS[name]()
    model, loss = copy.deepcopy(eager), make_loss(LossConfig(gradient_weight=0.1), (5, 7))
    network = model if whole_step else torch.compile(model, fullgraph=True, backend=backend)

    def measure(network):
        return lambda coords, inputs, truth, **more: loss(
            network(coords, inputs, **more), Batch(coords, inputs, truth)
        )

    compiled = measure(network)
    if whole_step:
        compiled = torch.compile(compiled, fullgraph=True, backend=backend)
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    more = {"segments": SEGMENTS} if name.endswith("-packed") else {}
    found, expected = steps(model, compiled, more), steps(eager, measure(eager), more)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert graphs["unique_graphs"] == 1, graphs
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    backend, part, name = sys.argv[1:]  # part: the model is compiled, or the model and its loss
    check(name, backend, whole_step=part == "loss")
