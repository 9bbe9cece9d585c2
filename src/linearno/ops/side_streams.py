"""Gradients of weights on streams of their own, beside the gradients that the next layer waits for."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

MAX_PENDING, MAX_PENDING_BYTES = (
    3,
    2**26,
)  # pieces of work in flight, and bytes that more of them may hold: a layer or two
SMALL_READ_BYTES = (
    2**23
)  # bytes that a piece reads: several at once, as one alone leaves most of the device idle
STREAM_COUNT = 3
TRANSPARENT_NODES = (
    "TransposeBackward0",
    "TBackward0",
    "FusedInverseBackward",
)  # send a gradient on without a wait
View = tuple[torch.Size, tuple[int, ...]]


class ParameterUse(NamedTuple):
    """A parameter that a function uses, and whether it was counted there or by what stands between them."""

    parameter_id: int
    counted: bool


ParameterUses = tuple[ParameterUse | None, ...] | None


class PendingWork(NamedTuple):
    """Work under way: where, when it is done, and what it reads until then."""

    stream: torch.cuda.Stream
    done: torch.cuda.Event
    read: tuple[Tensor, ...]

    @property
    def read_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.read)


class SideStreams:
    """The streams of a device, their work under way, and the uses of each parameter in this pass.

    Of a use whose gradient may be added to others there is the view, of any other None. Such gradients are
    all made on the first stream, one after another.
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
        """Wait for all work, and forget the pass: after an error, too."""
        self.active = False
        self.wait()
        self.uses.clear()
        self.partial_sums.clear()

    def run(
        self, work: Callable[[], tuple[Any, ...]], read: tuple[Tensor, ...], *, in_order: bool
    ) -> tuple[Any, ...]:
        while (
            len(self.pending) >= MAX_PENDING
            and sum(item.read_bytes for item in self.pending) > MAX_PENDING_BYTES
        ):
            self._wait_for_oldest()
        stream = self.streams[0]
        if not in_order and sum(tensor.nbytes for tensor in read) <= SMALL_READ_BYTES:
            self.last_stream = self.last_stream % (STREAM_COUNT - 1) + 1
            stream = self.streams[self.last_stream]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        return self._run(stream, work, read)

    def extend_last(self, work: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """More of the piece that was started last."""
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
            finally:  # after an error too: kernels that were launched still read these tensors
                self.pending.append(PendingWork(stream, stream.record_event(), read))

    def _wait_for_oldest(self) -> None:
        self.pending.popleft().done.wait(torch.cuda.current_stream(self.device))

    def may_defer(self, parameter_id: int) -> bool:
        """Whether nobody needs this parameter's gradient before the end of the pass: autograd adds nothing to
        it, since it is used once, or since `join` adds."""
        views = self.uses[parameter_id]
        return len(views) == 1 or (len(set(views)) == 1 and views[0] is not None)

    def accumulates(self, parameter_id: int) -> bool:
        """Whether it waits, or has to, for gradients of other uses."""
        return parameter_id in self.partial_sums or (
            len(self.uses[parameter_id]) > 1 and self.may_defer(parameter_id)
        )

    def accumulate(
        self, uses: tuple[ParameterUse | None, ...], gradients: tuple[Tensor | None, ...]
    ) -> tuple[Any, ...]:
        """The gradients of parameters used more than once as their sum, None before the last one."""
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
    """Around one forward and backward pass that starts without gradients: `beside` uses streams of its own.

    At the end all is done. Autograd calls `beside` from a thread of its own, so the block is noted at the
    device, not in a context. A parameter must reach the loss through the functions of `fused` and
    `fused_layers` alone.
    """
    if device.type != "cuda":
        yield
        return
    side = side_streams_of(device)
    side.begin()
    try:
        yield
        assert not side.partial_sums, "a parameter was used more often than its gradient came back"
    finally:
        side.end()


def record_use(*inputs: Tensor | None) -> ParameterUses:
    """In a forward pass: the parameters behind these inputs, None if anything between computes."""
    return None if torch.compiler.is_compiling() else _record(inputs, shared=False)


def record_shared_use(*inputs: Tensor | None) -> ParameterUses:
    """`note_use` of a function that gives its gradients to `join`: ask before it, where gradients are wanted.

    What a backward pass runs again is none: no gradient comes of it.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return None
    return _record(inputs, shared=torch._C._current_graph_task_id() == -1)


def _record(inputs: tuple[Tensor | None, ...], shared: bool) -> ParameterUses:
    trainable = [tensor if tensor is not None and tensor.requires_grad else None for tensor in inputs]
    uses = [None if tensor is None else _find_parameter(tensor) for tensor in trainable]
    all_found = all(
        (parameter is None) == (tensor is None) for parameter, tensor in zip(uses, trainable, strict=True)
    )
    recorded: list[ParameterUse | None] = []
    for tensor, parameter in zip(trainable, uses, strict=True):
        if tensor is None or parameter is None:
            recorded.append(None)
            continue
        counted = tensor.grad_fn is None or type(tensor.grad_fn).__name__ != "FusedInverseBackward"
        if counted:  # else the inverse itself has counted it
            _record_view(tensor, parameter, shared and all_found)
        recorded.append(ParameterUse(id(parameter), counted))
    return tuple(recorded) if all_found else None


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
    """`work()`: on another stream if it gives gradients of `leaves` that nothing is added to, so that
    nobody needs them before the end of the pass. `read` are all the tensors it reads but parameters. It runs
    on the first of the streams where it must come after other work there: where a gradient is to be joined
    with others, and where `first` says so. Gradients have the strides of their parameters: autograd would
    copy any other at once, before it is there."""
    device = read[0].device
    if uses is None or not is_deferred(device, uses):
        return work()
    side = side_streams_of(device)
    in_order = (
        in_order or not uses or any(side.accumulates(use.parameter_id) for use in uses if use is not None)
    )
    return side.run(work, read, in_order=in_order)


def is_deferred(device: torch.device, uses: ParameterUses) -> bool:
    if device.type != "cuda" or uses is None:
        return False
    side = side_streams_of(device)
    return side.active and all(side.may_defer(use.parameter_id) for use in uses if use is not None)


def accumulate_gradients(
    device: torch.device, uses: ParameterUses, *gradients: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients of `leaves`, just made beside or not: of a parameter used more than once they are added up
    here, and only its last use hands anything on."""
    if device.type != "cuda" or uses is None or not side_streams_of(device).active:
        return gradients
    side = side_streams_of(device)
    if not any(use and use.counted and side.accumulates(use.parameter_id) for use in uses):
        return gradients
    if is_deferred(device, uses):
        return side.extend_last(lambda: side.accumulate(uses, gradients))
    side.wait()
    return side.accumulate(uses, gradients)
