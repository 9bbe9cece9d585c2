"""Gradients of weights on a stream of their own, beside the gradients that the next layer waits for."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

LAST = 3  # pieces of work in flight: memory is held for no longer than a layer or two
PASSING = ("TransposeBackward0", "TBackward0", "FusedInverseBackward")  # send a gradient on without a wait
Leaves = tuple[int, ...] | None


class Side:
    """One stream, what it is still reading, and how often each parameter was used in this pass."""

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device)
        self.reading: deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = deque()
        self.uses: Counter[int] = Counter()
        self.open = False

    def start(self, work: Callable[[], tuple[Tensor, ...]], read: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.wait(LAST - 1)
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            result = work()
            self.reading.append((self.stream.record_event(), read))
        return result

    def wait(self, but: int) -> None:
        """For all pieces but the last few."""
        while len(self.reading) > but:
            done, _ = self.reading.popleft()
            done.wait(torch.cuda.current_stream(self.stream.device))


@cache
def side_of(device: torch.device) -> Side:
    return Side(device)


@contextmanager
def weights_beside(device: torch.device) -> Iterator[None]:
    """Around one forward and backward pass that starts without gradients: `beside` uses a second stream.

    At the end all is done. Autograd calls `beside` from a thread of its own, so the block is noted at the
    device, not in a context. A parameter must reach the loss through the functions of `fused` alone.
    """
    if device.type != "cuda":
        yield
        return
    side = side_of(device)
    side.open = True
    side.uses.clear()
    try:
        yield
    finally:
        side.open = False
        side.wait(0)


def note_use(*inputs: Tensor | None) -> Leaves:
    """In a forward pass: the parameters behind these inputs, None if anything between computes."""
    found: list[int] = []
    if torch.compiler.is_compiling():
        return None
    for tensor in inputs:
        if tensor is None or not tensor.requires_grad:
            continue
        leaf = _leaf(tensor)
        if leaf is None:
            return None
        found.append(id(leaf))
        counted = tensor.grad_fn is None or type(tensor.grad_fn).__name__ != "FusedInverseBackward"
        if counted and tensor.device.type == "cuda":  # else the inverse itself has counted it
            side_of(tensor.device).uses[id(leaf)] += 1
    return tuple(found)


def _leaf(tensor: Tensor) -> Tensor | None:
    node: Any = tensor.grad_fn
    if node is None:
        return tensor
    while type(node).__name__ in PASSING:
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)


def beside(
    work: Callable[[], tuple[Tensor, ...]], *read: Tensor, leaves: Leaves = None
) -> tuple[Tensor, ...]:
    """`work()`: on the second stream if it gives gradients of `leaves` that nothing is added to, so that
    nobody needs them before the end of the pass. `read` are all the tensors it reads but parameters."""
    device = read[0].device
    if device.type == "cuda" and is_late(device, leaves):
        return side_of(device).start(work, read)
    return work()


def is_late(device: torch.device, leaves: Leaves) -> bool:
    if device.type != "cuda" or leaves is None:
        return False
    side = side_of(device)
    return side.open and all(side.uses[leaf] == 1 for leaf in leaves)
