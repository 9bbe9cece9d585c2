"""Trace a trained model with its scaling as one graph in physical units."""

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
from linearno.inference.export.io_signature import io_signature
from linearno.ops import backend
from linearno.training.predict import predict_batch

Fields = dict[str, Tensor]
TRACED_SIZES = {"batch": 2, "points": 37, "observations": 19}  # all different, and none of them 1
SOURCE_KEYS = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn")  # of a node: local paths


class Surrogate(nn.Module):
    """One call of a bundle's model in float32, in physical units: named tensors in, named tensors out.

    Args:
        bundle: the trained surrogate; its model and scaler are copied.
    """

    coords: Tensor | None  # the points, if they are no input

    def __init__(self, bundle: Bundle):
        super().__init__()
        self.inputs, self.outputs = io_signature(bundle)
        self.model = deepcopy(bundle.model).eval().requires_grad_(False)
        self.scaler = deepcopy(bundle.scaler)
        has_coords = any(tensor.kind == "coords" for tensor in self.inputs)
        self.register_buffer("coords", None if has_coords else bundle.coords)
        self.channels = [tensor.name for tensor in self.inputs if tensor.kind == "input"]
        self.forward = _with_signature(self._predict, [tensor.name for tensor in self.inputs])

    def _predict(self, **inputs: Tensor) -> Fields:
        samples = next(iter(inputs.values())).shape[0]  # len() would fix it in the graph
        coords = inputs["coords"] if self.coords is None else self.coords.expand(samples, -1, -1)
        fields = [inputs[name] for name in self.channels]
        batch = Batch(
            coords,
            torch.stack(fields, dim=-1) if fields else None,
            targets=coords,  # for their type and device
            points=inputs.get("points"),
            time=inputs.get("time"),
        )
        found = predict_batch(self.model, self.scaler, batch, "fp32")
        return {tensor.name: found[..., channel] for channel, tensor in enumerate(self.outputs)}

    def random_inputs(self, sizes: Mapping[str, int], seed: int = 0) -> Fields:
        """Random inputs with these sizes of the dynamic axes, in the range of the training data."""
        generator, scaler = torch_generator(seed), self.scaler
        drawn = {tensor.name: torch.rand(tensor.shape(sizes), generator=generator) for tensor in self.inputs}
        for name in {"coords", "points"} & drawn.keys():
            drawn[name] = scaler.coords.decode(drawn[name])
        for channel, name in enumerate(self.channels):
            drawn[name] = drawn[name] * scaler.inputs.std[channel] + scaler.inputs.mean[channel]
        return drawn


def trace(surrogate: Surrogate) -> ExportedProgram:
    """The graph for any size of the dynamic axes, in plain operators and without local paths."""
    dims = {axis: Dim(axis, min=1) for tensor in surrogate.inputs for axis in tensor.dynamic_axes.values()}
    shapes = {
        tensor.name: {position: dims[axis] for position, axis in tensor.dynamic_axes.items()}
        for tensor in surrogate.inputs
    }
    inputs = surrogate.random_inputs(TRACED_SIZES)
    with quiet(), backend("plain"), torch.enable_grad():  # without gradients layers count blocks of points
        program = torch.export.export(surrogate, (), inputs, dynamic_shapes=shapes, strict=False)
    return decompose(program, {})


def decompose(program: ExportedProgram, table: Mapping[Any, Callable[..., Tensor]]) -> ExportedProgram:
    """The graph with each operator of `table` replaced by its decomposition; node sources are removed."""
    with quiet():
        program = program.run_decompositions(dict(table))
    for node in program.graph.nodes:
        for key in SOURCE_KEYS:
            node.meta.pop(key, None)
    return program


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings of torch.export and the ONNX exporter."""
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


def _with_signature(function: Callable[..., Fields], names: Iterable[str]) -> Callable[..., Fields]:
    """`function` with keyword parameters of these names, which torch.export reads from its signature."""

    def forward(**inputs: Tensor) -> Fields:
        return function(**inputs)

    parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in names]
    forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return forward
