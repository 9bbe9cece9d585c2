"""A trained model as one graph between physical units."""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from linearno.core.randomness import torch_generator
from linearno.data import Batch
from linearno.inference.bundle import Bundle
from linearno.inference.export.io_signature import ports_of
from linearno.ops import backend
from linearno.training.predict import predict_batch

Fields = dict[str, Tensor]
TRACED = {"batch": 2, "points": 37, "observations": 19}  # no two alike, and none of them 1
SOURCES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn")  # of a node: places on this disk


class Surrogate(nn.Module):
    """What `load(run)` answers in one call, in float32: tensors by name in, tensors by name out.

    asks, gives   what goes in and what comes out
    coords        the points, where they are not asked for
    """

    coords: Tensor | None

    def __init__(self, bundle: Bundle):
        super().__init__()
        self.asks, self.gives = ports_of(bundle)
        self.model = deepcopy(bundle.model).eval().requires_grad_(False)
        self.scaler = deepcopy(bundle.scaler)
        asked = any(port.kind == "coords" for port in self.asks)
        self.register_buffer("coords", None if asked else bundle.coords)
        self.inputs = [port.name for port in self.asks if port.kind == "input"]
        self.forward = _named(self._answer, [port.name for port in self.asks])

    def _answer(self, **asked: Tensor) -> Fields:
        batch = next(iter(asked.values())).shape[0]  # len() would fix it in the graph
        coords = asked["coords"] if self.coords is None else self.coords.expand(batch, -1, -1)
        fields = [asked[name] for name in self.inputs]
        question = Batch(
            coords,
            torch.stack(fields, dim=-1) if fields else None,
            targets=coords,  # for their type and device
            points=asked.get("points"),
            time=asked.get("time"),
        )
        told = predict_batch(self.model, self.scaler, question, "fp32")
        return {port.name: told[..., channel] for channel, port in enumerate(self.gives)}

    def question(self, sizes: Mapping[str, int], seed: int = 0) -> Fields:
        """Numbers to try it with, about as large as those of the training data."""
        generator, scaler = torch_generator(seed), self.scaler
        asked = {port.name: torch.rand(port.shape(sizes), generator=generator) for port in self.asks}
        for name in {"coords", "points"} & asked.keys():
            asked[name] = scaler.coords.decode(asked[name])
        for channel, name in enumerate(self.inputs):
            asked[name] = asked[name] * scaler.inputs.std[channel] + scaler.inputs.mean[channel]
        return asked


def trace(surrogate: Surrogate) -> ExportedProgram:
    """The graph for any size of the free axes: plain operators, and nothing of where it was made."""
    sizes = {axis: Dim(axis, min=1) for port in surrogate.asks for axis in port.free.values()}
    shapes = {port.name: {place: sizes[axis] for place, axis in port.free.items()} for port in surrogate.asks}
    asked = surrogate.question(TRACED)
    with quiet(), backend("plain"), torch.enable_grad():  # without gradients layers count blocks of points
        program = torch.export.export(surrogate, (), asked, dynamic_shapes=shapes, strict=False)
    return decompose(program, {})


def decompose(program: ExportedProgram, table: Mapping[Any, Callable[..., Tensor]]) -> ExportedProgram:
    """The same graph with the operators of `table` written in others, without regions and sources."""
    with quiet():
        program = program.run_decompositions(dict(table))
    for node in program.graph.nodes:
        for key in SOURCES:
            node.meta.pop(key, None)
    return program


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch says of its own parts, and of packages that are not needed here."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _named(function: Callable[..., Fields], names: Iterable[str]) -> Callable[..., Fields]:
    """`function` with a signature that says which tensors it takes: torch.export reads it."""

    def forward(**asked: Tensor) -> Fields:
        return function(**asked)

    parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in names]
    forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what inspect looks for
    return forward
