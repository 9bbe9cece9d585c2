"""A step in time as a CUDA graph: the host only starts it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def recorded(step: Callable[[], None], state: Sequence[Tensor]) -> Callable[[], None]:
    """A call that is step(), which changes `state` in place; on CUDA the replay of a graph, which reads and
    writes where all that `step` uses lies now, so it must outlive the replays."""
    device = state[0].device
    if device.type != "cuda":
        return step
    with torch.cuda.device(device):
        before, aside = [tensor.clone() for tensor in state], torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # plans and workspaces are made now: none can be while recording
            step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
    return graph.replay
