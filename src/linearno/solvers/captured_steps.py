"""Capture a time step as a CUDA graph, for loops of thousands of steps."""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from linearno.core.cuda_graph import capture

log = logging.getLogger(__name__)

Step = Callable[[], None]


def capture_step(step: Step, state: Sequence[Tensor], *, fuse: Sequence[Tensor] = ()) -> Step:
    """Return a function equivalent to `step`; on CUDA it replays a graph on the memory that `step` uses.

    Args:
        step: changes `state` in place.
        state: tensors restored after warm-up and capture.
        fuse: tensors with a leading axis of samples; if given, torch.compile fuses the kernels of `step`.
            That takes up to a minute, once for all batch sizes from two; other sizes are constants.
    """
    device, before = state[0].device, [tensor.clone() for tensor in state]
    if device.type == "cuda":
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device), torch.cuda.stream(stream):
            step = _compile(step, fuse) if fuse else step
        torch.cuda.current_stream(device).wait_stream(stream)
        step = capture(step, stream=stream, warmup=1)
    elif fuse:
        step = _compile(step, fuse)
    for tensor, value in zip(state, before, strict=True):
        tensor.copy_(value)
    return step


def _compile(step: Step, batched: Sequence[Tensor]) -> Step:
    """Compile the step; if that fails, for example without a C++ compiler, return it unchanged."""
    fused = torch.compile(step, fullgraph=True)
    try:
        for tensor in batched:
            torch._dynamo.mark_dynamic(tensor, 0)
        fused()
    except Exception as error:  # torch.compile raises many types, none of them public
        log.warning("torch.compile failed, the step runs slower: %s", str(error).strip().splitlines()[0])
        return step
    return fused
