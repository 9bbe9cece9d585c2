"""Gradients of weights on streams of their own, beside the gradients that the next layer waits for."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

LAST, HELD = 3, 2**26  # pieces of work in flight, and bytes that more of them may hold: a layer or two
SMALL = 2**23  # bytes that a piece reads: several at once, as one alone leaves most of the device idle
STREAMS = 3
PASSING = ("TransposeBackward0", "TBackward0", "FusedInverseBackward")  # send a gradient on without a wait
View = tuple[torch.Size, tuple[int, ...]]


class Use(NamedTuple):
    """A parameter that a function uses, and whether it was counted there or by what stands between them."""

    leaf: int
    counted: bool


Leaves = tuple[Use | None, ...] | None


class Piece(NamedTuple):
    """Work under way: where, when it is done, and what it reads until then."""

    stream: torch.cuda.Stream
    done: torch.cuda.Event
    read: tuple[Tensor, ...]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.read)


class Side:
    """The streams of a device, their work under way, and the uses of each parameter in this pass.

    Of a use whose gradient may be added to others there is the view, of any other None. Such gradients are
    all made on the first stream, one after another.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.streams = [torch.cuda.Stream(device) for _ in range(STREAMS)]
        self.pieces: deque[Piece] = deque()
        self.uses: defaultdict[int, list[View | None]] = defaultdict(list)
        self.waiting: dict[int, Tensor] = {}
        self.turn = 0
        self.open = False

    def begin(self) -> None:
        self.open, self.turn = True, 0
        self.uses.clear()
        self.waiting.clear()

    def end(self) -> None:
        """Wait for all work, and forget the pass: after an error, too."""
        self.open = False
        self.wait()
        self.uses.clear()
        self.waiting.clear()

    def start(
        self, work: Callable[[], tuple[Any, ...]], read: tuple[Tensor, ...], *, first: bool
    ) -> tuple[Any, ...]:
        while len(self.pieces) >= LAST and sum(piece.bytes for piece in self.pieces) > HELD:
            self._wait_for_first()
        stream = self.streams[0]
        if not first and sum(tensor.nbytes for tensor in read) <= SMALL:
            self.turn = self.turn % (STREAMS - 1) + 1
            stream = self.streams[self.turn]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        return self._run(stream, work, read)

    def go_on(self, work: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """More of the piece that was started last."""
        last = self.pieces.pop()
        return self._run(last.stream, work, last.read)

    def wait(self) -> None:
        while self.pieces:
            self._wait_for_first()

    def _run(
        self, stream: torch.cuda.Stream, work: Callable[[], tuple[Any, ...]], read: tuple[Tensor, ...]
    ) -> tuple[Any, ...]:
        with torch.cuda.stream(stream):
            try:
                return work()
            finally:  # after an error too: kernels that were launched still read these tensors
                self.pieces.append(Piece(stream, stream.record_event(), read))

    def _wait_for_first(self) -> None:
        self.pieces.popleft().done.wait(torch.cuda.current_stream(self.device))

    def can_wait(self, leaf: int) -> bool:
        """Whether nobody needs this parameter's gradient before the end of the pass: autograd adds nothing to
        it, since it is used once, or since `join` adds."""
        views = self.uses[leaf]
        return len(views) == 1 or (len(set(views)) == 1 and views[0] is not None)

    def shares(self, leaf: int) -> bool:
        """Whether it waits, or has to, for gradients of other uses."""
        return leaf in self.waiting or (len(self.uses[leaf]) > 1 and self.can_wait(leaf))

    def add(self, leaves: tuple[Use | None, ...], gradients: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
        """The gradients of parameters used more than once as their sum, None before the last one."""
        return tuple(
            self._sum(use.leaf, gradient)
            if use is not None and gradient is not None and use.counted and self.shares(use.leaf)
            else gradient
            for use, gradient in zip(leaves, gradients, strict=True)
        )

    def _sum(self, leaf: int, gradient: Tensor) -> Tensor | None:
        if leaf in self.waiting:
            gradient = self.waiting.pop(leaf).add_(gradient)
        self.uses[leaf].pop()
        if not self.uses[leaf]:
            return gradient
        self.waiting[leaf] = gradient
        return None


@cache
def side_of(device: torch.device) -> Side:
    return Side(device)


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
    side = side_of(device)
    side.begin()
    try:
        yield
        assert not side.waiting, "a parameter was used more often than its gradient came back"
    finally:
        side.end()


def note_use(*inputs: Tensor | None) -> Leaves:
    """In a forward pass: the parameters behind these inputs, None if anything between computes."""
    return None if torch.compiler.is_compiling() else _note(inputs, joint=False)


def note_joint_use(*inputs: Tensor | None) -> Leaves:
    """`note_use` of a function that gives its gradients to `join`: ask before it, where gradients are wanted.

    What a backward pass runs again is none: no gradient comes of it.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return None
    return _note(inputs, joint=torch._C._current_graph_task_id() == -1)


def _note(inputs: tuple[Tensor | None, ...], joint: bool) -> Leaves:
    learned = [tensor if tensor is not None and tensor.requires_grad else None for tensor in inputs]
    leaves = [None if tensor is None else _leaf(tensor) for tensor in learned]
    known = all((leaf is None) == (tensor is None) for leaf, tensor in zip(leaves, learned, strict=True))
    found: list[Use | None] = []
    for tensor, leaf in zip(learned, leaves, strict=True):
        if tensor is None or leaf is None:
            found.append(None)
            continue
        counted = tensor.grad_fn is None or type(tensor.grad_fn).__name__ != "FusedInverseBackward"
        if counted:  # else the inverse itself has counted it
            _count(tensor, leaf, joint and known)
        found.append(Use(id(leaf), counted))
    return tuple(found) if known else None


def _count(tensor: Tensor, leaf: Tensor, joint: bool) -> None:
    if tensor.device.type == "cuda" and (side := side_of(tensor.device)).open:
        side.uses[id(leaf)].append((tensor.shape, tensor.stride()) if joint else None)


def _leaf(tensor: Tensor) -> Tensor | None:
    node: Any = tensor.grad_fn
    if node is None:
        return tensor
    while type(node).__name__ in PASSING:
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)


def beside(
    work: Callable[[], tuple[Tensor, ...]], *read: Tensor, leaves: Leaves = None, first: bool = False
) -> tuple[Tensor, ...]:
    """`work()`: on another stream if it gives gradients of `leaves` that nothing is added to, so that
    nobody needs them before the end of the pass. `read` are all the tensors it reads but parameters. It runs
    on the first of the streams where it must come after other work there: where a gradient is to be joined
    with others, and where `first` says so. Gradients have the strides of their parameters: autograd would
    copy any other at once, before it is there."""
    device = read[0].device
    if leaves is None or not is_late(device, leaves):
        return work()
    side = side_of(device)
    first = first or not leaves or any(side.shares(use.leaf) for use in leaves if use is not None)
    return side.start(work, read, first=first)


def is_late(device: torch.device, leaves: Leaves) -> bool:
    if device.type != "cuda" or leaves is None:
        return False
    side = side_of(device)
    return side.open and all(side.can_wait(use.leaf) for use in leaves if use is not None)


def join(device: torch.device, leaves: Leaves, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients of `leaves`, just made beside or not: of a parameter used more than once they are added up
    here, and only its last use hands anything on."""
    if device.type != "cuda" or leaves is None or not side_of(device).open:
        return gradients
    side = side_of(device)
    if not any(use and use.counted and side.shares(use.leaf) for use in leaves):
        return gradients
    if is_late(device, leaves):
        return side.go_on(lambda: side.add(leaves, gradients))
    side.wait()
    return side.add(leaves, gradients)
