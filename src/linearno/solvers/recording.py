"""A step in time, to be taken thousands of times: on CUDA as a graph, which the host only starts."""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

log = logging.getLogger(__name__)

Step = Callable[[], None]


def recorded(step: Step, state: Sequence[Tensor], *, fuse: Sequence[Tensor] = ()) -> Step:
    """A call that is step(), which changes `state` in place. On CUDA it replays a graph, which reads and
    writes where all that `step` uses lies now, so it must outlive the replays.

    With `fuse`, all of that which has an axis of samples, in front, PyTorch's compiler makes a few loops or
    kernels of many. It takes up to a minute, once for all numbers of samples from two on; other sizes become
    constants.
    """
    device, before = state[0].device, [tensor.clone() for tensor in state]
    if device.type == "cuda":
        with torch.cuda.device(device):
            step = _replayed(step, fuse)
    elif fuse:
        step = _fused(step, fuse)
    for tensor, value in zip(state, before, strict=True):
        tensor.copy_(value)
    return step


def _replayed(step: Step, fuse: Sequence[Tensor]) -> Step:
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # plans and workspaces are made now: none can be while recording
        step = _fused(step, fuse) if fuse else step
        step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _fused(step: Step, batched: Sequence[Tensor]) -> Step:
    """The step compiled, or as it is where that fails: a compiler needs more than PyTorch brings along."""
    fused = torch.compile(step, fullgraph=True)
    try:
        for tensor in batched:
            torch._dynamo.mark_dynamic(tensor, 0)
        fused()
    except Exception as error:  # of many kinds, none of them public
        log.warning("a step is not compiled and takes longer: %s", str(error).strip().splitlines()[0])
        return step
    return fused
