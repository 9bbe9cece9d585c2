"""Compute weight gradients on side CUDA streams, overlapped with activation gradients.

Without side streams the training steps of Darcy, Airfoil, Elasticity and Navier-Stokes take 15, 13, 39 and
0 % longer (NVIDIA H200, bf16, captured as a CUDA graph).
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

MAX_PENDING = 3  # items that may be in flight whatever they read
MAX_PENDING_BYTES = 2**26  # limit of the bytes read by more items: a layer or two
SMALL_READ_BYTES = 2**23  # smaller items leave most of the device idle and run concurrently
STREAM_COUNT = 3
# Nodes that may lie between a parameter and its use: they read no gradients on the main stream.
TRANSPARENT_NODES = ("TransposeBackward0", "TBackward0", "FusedInverseBackward")
View = tuple[torch.Size, tuple[int, ...]]


class ParameterUse(NamedTuple):
    """One use of a parameter in a forward pass.

    Args:
        parameter_id: `id` of the parameter.
        counted: whether this function recorded the use; False if `FusedInverse` before it did.
    """

    parameter_id: int
    counted: bool


ParameterUses = tuple[ParameterUse | None, ...] | None


class PendingWork(NamedTuple):
    """Work in flight: its stream, the event at its end, and the tensors it reads."""

    stream: torch.cuda.Stream
    done: torch.cuda.Event
    read: tuple[Tensor, ...]


def _read_bytes(item: PendingWork) -> int:
    return sum(tensor.nbytes for tensor in item.read)


class SideStreams:
    """The side streams of a device, the work in flight, and the uses of each parameter in this pass.

    `uses` holds for each use the shape and strides of its gradient if `accumulate_gradients` may add it to
    others, else None. Gradients that are added run in order on the first stream.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.streams = [torch.cuda.Stream(device) for _ in range(STREAM_COUNT)]
        self.pending: deque[PendingWork] = deque()
        self.uses: defaultdict[int, list[View | None]] = defaultdict(list)
        self.partial_sums: dict[int, Tensor] = {}
        self.last_stream = 0
        self.active = False

    def begin(self) -> None:
        self.active, self.last_stream = True, 0
        self.uses.clear()
        self.partial_sums.clear()

    def end(self) -> None:
        """Wait for all work and clear the records of the pass, also after an error."""
        self.active = False
        self.wait()
        self.uses.clear()
        self.partial_sums.clear()

    def run(
        self, work: Callable[[], tuple[Any, ...]], read: tuple[Tensor, ...], *, in_order: bool
    ) -> tuple[Any, ...]:
        """Run `work` on the first stream if `in_order` or large, else on the next of the others."""
        while len(self.pending) >= MAX_PENDING and sum(map(_read_bytes, self.pending)) > MAX_PENDING_BYTES:
            self._wait_for_oldest()
        stream = self.streams[0]
        if not in_order and sum(tensor.nbytes for tensor in read) <= SMALL_READ_BYTES:
            self.last_stream = self.last_stream % (STREAM_COUNT - 1) + 1
            stream = self.streams[self.last_stream]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        return self._run(stream, work, read)

    def extend_last(self, work: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Append work to the last item, on its stream."""
        last = self.pending.pop()
        return self._run(last.stream, work, last.read)

    def wait(self) -> None:
        while self.pending:
            self._wait_for_oldest()

    def _run(
        self, stream: torch.cuda.Stream, work: Callable[[], tuple[Any, ...]], read: tuple[Tensor, ...]
    ) -> tuple[Any, ...]:
        with torch.cuda.stream(stream):
            try:
                return work()
            finally:  # also after an error: launched kernels still read these tensors
                self.pending.append(PendingWork(stream, stream.record_event(), read))

    def _wait_for_oldest(self) -> None:
        self.pending.popleft().done.wait(torch.cuda.current_stream(self.device))

    def may_defer(self, parameter_id: int) -> bool:
        """Whether the gradient is not read before the end of the pass: the parameter is used once, or
        `accumulate_gradients` sums its gradients instead of autograd."""
        views = self.uses[parameter_id]
        return len(views) == 1 or (len(set(views)) == 1 and views[0] is not None)

    def accumulates(self, parameter_id: int) -> bool:
        """Whether gradients of several uses of the parameter are summed here."""
        return parameter_id in self.partial_sums or (
            len(self.uses[parameter_id]) > 1 and self.may_defer(parameter_id)
        )

    def accumulate(
        self, uses: tuple[ParameterUse | None, ...], gradients: tuple[Tensor | None, ...]
    ) -> tuple[Any, ...]:
        """Replace the gradient of a parameter used several times by None, and by the sum at its last use."""
        return tuple(
            self._accumulate_one(use.parameter_id, gradient)
            if use is not None and gradient is not None and use.counted and self.accumulates(use.parameter_id)
            else gradient
            for use, gradient in zip(uses, gradients, strict=True)
        )

    def _accumulate_one(self, parameter_id: int, gradient: Tensor) -> Tensor | None:
        if parameter_id in self.partial_sums:
            gradient = self.partial_sums.pop(parameter_id).add_(gradient)
        self.uses[parameter_id].pop()
        if not self.uses[parameter_id]:
            return gradient
        self.partial_sums[parameter_id] = gradient
        return None


@cache
def side_streams_of(device: torch.device) -> SideStreams:
    return SideStreams(device)


@contextmanager
def overlap_weight_gradients(device: torch.device) -> Iterator[None]:
    """Run weight gradients of one forward and backward pass on side streams; wait for them at the end.

    Parameters must have no gradient at the start and reach the loss only through functions of
    `attention_autograd` and `layer_autograd`. The state belongs to the device, as autograd calls
    `run_on_side_stream` in another thread.
    """
    if device.type != "cuda":
        yield
        return
    side = side_streams_of(device)
    side.begin()
    try:
        yield
        assert not side.partial_sums, "a recorded use of a parameter returned no gradient"
    finally:
        side.end()


def record_use(*inputs: Tensor | None) -> ParameterUses:
    """Record the parameters behind these inputs in a forward pass.

    Returns None if an operation other than `TRANSPARENT_NODES` lies between a parameter and its input.
    """
    return None if torch.compiler.is_compiling() else _record(inputs, shared=False)


def record_shared_use(*inputs: Tensor | None) -> ParameterUses:
    """`record_use` of a function that calls `accumulate_gradients`; call it before `apply`.

    A recomputation inside a backward pass is not counted as shared: it returns no gradient.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return None
    return _record(inputs, shared=torch._C._current_graph_task_id() == -1)


def _record(inputs: tuple[Tensor | None, ...], shared: bool) -> ParameterUses:
    trainable = [tensor if tensor is not None and tensor.requires_grad else None for tensor in inputs]
    parameters = [None if tensor is None else _find_parameter(tensor) for tensor in trainable]
    all_known = all(
        (parameter is None) == (tensor is None)
        for parameter, tensor in zip(parameters, trainable, strict=True)
    )
    recorded: list[ParameterUse | None] = []
    for tensor, parameter in zip(trainable, parameters, strict=True):
        if tensor is None or parameter is None:
            recorded.append(None)
            continue
        counted = tensor.grad_fn is None or type(tensor.grad_fn).__name__ != "FusedInverseBackward"
        if counted:  # else `FusedInverse` recorded the use
            _record_view(tensor, parameter, shared and all_known)
        recorded.append(ParameterUse(id(parameter), counted))
    return tuple(recorded) if all_known else None


def _record_view(tensor: Tensor, parameter: Tensor, shared: bool) -> None:
    if tensor.device.type == "cuda" and (side := side_streams_of(tensor.device)).active:
        side.uses[id(parameter)].append((tensor.shape, tensor.stride()) if shared else None)


def _find_parameter(tensor: Tensor) -> Tensor | None:
    node: Any = tensor.grad_fn
    if node is None:
        return tensor
    while type(node).__name__ in TRANSPARENT_NODES:
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)


def run_on_side_stream(
    work: Callable[[], tuple[Tensor, ...]], *read: Tensor, uses: ParameterUses = None, in_order: bool = False
) -> tuple[Tensor, ...]:
    """Run `work` on a side stream if its result is not read before the end of the backward pass.

    Args:
        work: computes gradients of the parameters of `uses`, with the strides of the parameters: autograd
            would copy others at once, before they are complete.
        read: all tensors that `work` reads, except parameters.
        uses: uses of the parameters; None: run at once.
        in_order: run on the first stream, after earlier work there; implied if gradients are accumulated.
    """
    device = read[0].device
    if uses is None or not is_deferred(device, uses):
        return work()
    side = side_streams_of(device)
    shared = any(side.accumulates(use.parameter_id) for use in uses if use is not None)
    return side.run(work, read, in_order=in_order or not uses or shared)


def is_deferred(device: torch.device, uses: ParameterUses) -> bool:
    """Whether gradients of these uses run on side streams."""
    if device.type != "cuda" or uses is None:
        return False
    side = side_streams_of(device)
    return side.active and all(side.may_defer(use.parameter_id) for use in uses if use is not None)


def accumulate_gradients(
    device: torch.device, uses: ParameterUses, *gradients: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Sum the gradients of parameters used several times: None until the last use, which returns the sum."""
    if device.type != "cuda" or uses is None or not side_streams_of(device).active:
        return gradients
    side = side_streams_of(device)
    if not any(use and use.counted and side.accumulates(use.parameter_id) for use in uses):
        return gradients
    if is_deferred(device, uses):
        return side.extend_last(lambda: side.accumulate(uses, gradients))
    side.wait()
    return side.accumulate(uses, gradients)
