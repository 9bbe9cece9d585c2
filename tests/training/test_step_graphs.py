"""Which steps run eagerly, which are captured, and which replayed. Stand-ins record what a GPU would do."""

import pytest
import torch

from linearno.training.step_graphs import WARM_UP_STEPS, StepGraphs
from tests.core.test_cuda_graph import CUDA, cuda  # noqa: F401


class Optimizer:
    layout = 0

    def zero_grad(self, set_to_none):
        assert set_to_none


@pytest.fixture
def steps(cuda):  # noqa: F811
    """Calls of `step(samples)` give what happened in them."""
    optimizer = Optimizer()
    graphs = StepGraphs(optimizer, CUDA, keep_alive=None)

    def update(index, drawn):
        cuda.events.append(f"update {index.tolist()} {drawn.item()}")
        return index, drawn

    def step(*samples, drawn=0):
        before = len(cuda.events)
        step.result = graphs(update, torch.tensor(samples), torch.tensor([drawn]))
        return [event if isinstance(event, str) else event[:2] for event in cuda.events[before:]]

    step.optimizer, step.graphs = optimizer, graphs
    return step


def captured(steps, *samples):
    for _ in range(WARM_UP_STEPS):
        steps(*samples)
    return steps(*samples)


def test_a_step_is_captured_after_eager_ones_and_replayed_on_other_samples(steps):
    for number in range(WARM_UP_STEPS):
        assert steps(number, 7) == [f"update [{number}, 7] 0"]
    assert steps(4, 5, drawn=3) == [
        *("synchronize", "empty_cache", ("begin", None), "update [4, 5] 3", "end", "replay")
    ]
    assert steps(8, 9, drawn=2) == ["replay"]
    samples, drawn = steps.result
    assert (samples.tolist(), drawn.item()) == ([8, 9], 2)  # the captured step reads its samples here


def test_a_smaller_last_batch_has_a_graph_of_its_own_in_the_same_memory(steps):
    captured(steps, 1, 2)
    assert steps(3) == ["update [3] 0"]  # libraries choose other kernels for other shapes
    (graph,) = [graph.replay.pool for graph in steps.graphs._graphs.values()]
    assert ("begin", graph) in steps(3)
    assert steps(3) == steps(1, 2) == ["replay"]


def test_steps_are_captured_again_after_the_weights_have_moved(steps):
    captured(steps, 1, 2)
    steps.optimizer.layout += 1
    assert steps(5, 6) == ["update [5, 6] 0"]
    assert "replay" in captured(steps, 5, 6)


def test_the_graphs_do_not_hold_the_function(steps):
    captured(steps, 1)
    (graph,) = steps.graphs._graphs.values()
    kept = graph.replay._keep_alive
    assert kept[0] is None
    assert [part.tolist() for part in kept[1:]] == [[1], [0]]
