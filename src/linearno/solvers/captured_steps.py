"""A step in time, to be taken thousands of times: on CUDA as a graph, which the host only starts."""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from linearno.core.cuda_graph import capture

log = logging.getLogger(__name__)

Step = Callable[[], None]


def capture_step(step: Step, state: Sequence[Tensor], *, fuse: Sequence[Tensor] = ()) -> Step:
    """A call that is step(), which changes `state` in place. On CUDA it replays a graph, which reads and
    writes the memory that `step` uses now; the call keeps `step` alive.

    With `fuse`, all of that which has an axis of samples, in front, PyTorch's compiler makes a few loops or
    kernels of many. It takes up to a minute, once for all numbers of samples from two on; other sizes become
    constants.
    """
    device, before = state[0].device, [tensor.clone() for tensor in state]
    if device.type == "cuda":
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device), torch.cuda.stream(stream):
            step = _fused(step, fuse) if fuse else step
        torch.cuda.current_stream(device).wait_stream(stream)
        step = capture(step, stream=stream, warmup=1)
    elif fuse:
        step = _fused(step, fuse)
    for tensor, value in zip(state, before, strict=True):
        tensor.copy_(value)
    return step


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
