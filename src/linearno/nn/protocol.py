"""What the library may ask of a model: the arguments it was built with, and optional capabilities.

Any `nn.Module` whose `forward(coords, inputs=None)` maps (B, N, X) and (B, N, C) to (B, N, C_out) is a model.
Everything else is optional: a capability is a protocol, asked with `isinstance`, and what a model lacks is
reported as unsupported.
"""

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.metrics.cost import Shape

GRID_NEED = "grid"  # a need that is met when a model is built, not when it is called


class ModelConfig(Config):
    """Settings of a model. `@model` derives the fields from the signature of its constructor."""

    name: str


def settings_of(config: ModelConfig) -> dict[str, Any]:
    """Keyword arguments of the model's constructor, as Python objects."""
    return {name: getattr(config, name) for name in type(config).model_fields if name != "name"}


class ModelSpec(NamedTuple):
    """How a model was built: `sizes` come from the data, `config` from the user.

    `needs` names what `forward` takes beyond coordinates and inputs: "time", "positions", "points",
    "surface", or an auxiliary field of the data such as "edges".
    """

    config: ModelConfig
    sizes: Mapping[str, Any]
    needs: tuple[str, ...] = ()


def spec_of(model: nn.Module) -> ModelSpec:
    """How a registered model was built; an error for any other module."""
    spec = model.__dict__.get("_model_spec")
    if spec is None:
        name = type(model).__name__
        if name == "OptimizedModule":
            raise UserError("this is a compiled module: build the model and call model.compile() instead")
        raise UserError(f'{name} is not registered: put @linearno.model("name") above the class')
    return spec


def needs_of(model: nn.Module) -> tuple[str, ...] | None:
    """What `forward` takes beyond coordinates and inputs; None for a module that is not registered."""
    spec = model.__dict__.get("_model_spec")
    return None if spec is None else spec.needs


def model_name(model: nn.Module) -> str:
    """The registered name, or the class of a module that has none."""
    spec = model.__dict__.get("_model_spec")
    return type(model).__name__ if spec is None else spec.config.name


def setting_instead(model: nn.Module, need: str) -> str:
    """What to set if the data do not have what the model needs, as the end of an error; "" if nothing helps.

    A model says so in an attribute `setting_instead`, a dictionary by need.
    """
    found = getattr(model, "setting_instead", {}).get(need)
    return "" if found is None else f"; {found}"


def single_model(model: nn.Module) -> nn.Module:
    """The first member of an ensemble, which has the properties of all; any other model itself."""
    members = getattr(model, "ensemble_members", None)
    return model if members is None else members[0]


def takes_segments(model: nn.Module) -> bool:
    """Whether `forward` takes meshes of different sizes packed one after another."""
    return "segments" in signature(single_model(model).forward).parameters


def completes(model: nn.Module) -> bool:
    """Whether the model predicts at `points` from observations elsewhere."""
    return "points" in (needs_of(model) or ())


def fixed_grid(model: nn.Module) -> tuple[int, ...] | None:
    """The grid that the model is bound to; None if it predicts at any points."""
    model = single_model(model)
    if isinstance(model, FixedGrid):
        return model.fixed_grid
    if GRID_NEED in (needs_of(model) or ()):
        spec = spec_of(model)
        grid = spec.sizes.get("grid") or getattr(spec.config, "grid", None)
        return None if grid is None else tuple(grid)
    return None


def fixed_points(model: nn.Module) -> int | None:
    """The number of points that a model outside grids is bound to; None if it predicts at any points."""
    model = single_model(model)
    return model.fixed_points if isinstance(model, FixedPoints) else None


def state_size(model: nn.Module) -> int:
    """Number of parameters; of a model fitted in closed form, of the numbers of its fitted state."""
    tensors = model.buffers() if isinstance(model, SelfFitting) else model.parameters()
    return sum(tensor.numel() for tensor in tensors)


def capabilities(model: nn.Module) -> tuple[str, ...]:
    """Where the model predicts ("grid", "mesh" or "points"), and what else it can do.

    "graph", "ragged", "query", "stream", "closed form" and "std".
    """
    needs = needs_of(model) or ()
    found = {
        "grid": fixed_grid(model) is not None or GRID_NEED in needs,
        "mesh": fixed_grid(model) is None and GRID_NEED not in needs and not isinstance(model, FixedPoints),
        "points": isinstance(model, FixedPoints),
        "graph": "edges" in needs or hasattr(spec_of(model).config, "graph"),
        "ragged": takes_segments(model) and fixed_grid(model) is None,
        "query": isinstance(model, Queryable) and fixed_grid(model) is None,
        "stream": isinstance(model, Streamable) and fixed_grid(model) is None,
        "closed form": isinstance(model, SelfFitting),
        "std": isinstance(model, Probabilistic),
    }
    return tuple(name for name, present in found.items() if present)


def grid_free_settings(model: nn.Module) -> str:
    """Settings with which a model bound to a grid would predict at any points."""
    return (model.grid_free_settings if isinstance(model, FixedGrid) else "") or "another model"


@runtime_checkable
class FixedGrid(Protocol):
    """A model that some of its settings bind to one grid."""

    @property
    def fixed_grid(self) -> tuple[int, ...] | None: ...

    @property
    def grid_free_settings(self) -> str: ...


@runtime_checkable
class FixedPoints(Protocol):
    """A model bound to the points of its training data, or to points that correspond to them in order."""

    @property
    def fixed_points(self) -> int | None:
        """Number of points of every sample; None as long as any number is possible."""
        ...


@runtime_checkable
class SelfFitting(Protocol):
    """A model that is fitted in closed form, by one call of `fit`, instead of by gradient steps.

    Its fitted state is buffers, None before, which are saved with the model.
    """

    def require_fittable(self, samples: int) -> None:
        """An error if `samples` training samples or a missing package prevent fitting, before any work."""
        ...

    def fit(self, coords: Tensor, inputs: Tensor | None, targets: Tensor) -> None:
        """Fit to all training samples (S, N, ·), scaled as `forward` sees them, with scaled targets.

        Random choices are drawn from the global random state, which the seed of the run sets.
        """
        ...

    def allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make buffers of these shapes, read from a saved model, by name; refuse shapes that do not fit."""
        ...


@runtime_checkable
class Probabilistic(Protocol):
    """A model that predicts a standard deviation with the mean."""

    def mean_and_std(self, coords: Tensor, inputs: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What `forward` returns, and its standard deviation in the same units, each (B, N, C)."""
        ...


@runtime_checkable
class Queryable(Protocol):
    """A model that encodes a sample once and predicts at any points from the encoded states.

    One that needs positions takes them as a keyword of `encode`, and is queried at unscaled points.
    """

    def encode(self, coords: Tensor, inputs: Any = None) -> Any: ...

    def query(self, points: Tensor, states: Any) -> Tensor: ...


@runtime_checkable
class Streamable(Queryable, Protocol):
    """A model whose blocks run over chunks of points; see `linearno.inference.streaming`."""

    training: bool
    sizes: dict[str, int]
    width: int
    mlp_ratio: int
    features: int
    outputs: int

    @property
    def point_blocks(self) -> nn.ModuleList: ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...

    def require_queryable(self) -> None: ...

    def lift_features(
        self, coords: Tensor, inputs: Tensor | None = None, *, time: Any = None, positions: Any = None
    ) -> Tensor: ...

    def project_features(self, h: Tensor) -> Tensor: ...

    def cost_shape(self, points: int) -> Shape: ...


@runtime_checkable
class Inspectable(Protocol):
    """A model that shows its slice weights φ and ψ, layer by layer."""

    def slice_weights(self, coords: Tensor, inputs: Any = None) -> Iterator[tuple[Tensor, Tensor]]: ...


@runtime_checkable
class Recomputable(Protocol):
    """A model that can recompute its blocks in the backward pass instead of storing activations."""

    recompute: bool


def capturable(model: nn.Module) -> bool:
    """Whether a training step may be captured as a CUDA graph: no work on the host, no data-dependent shape.

    A model says so with a class attribute `capturable = True`.
    """
    return bool(getattr(model, "capturable", False))


def fused_parameters(model: nn.Module) -> bool:
    """Whether every parameter reaches the loss through the fused functions of `linearno.ops` alone.

    Only then may its weight gradients run on side streams.
    """
    return bool(getattr(model, "fused_parameters", False))


def unsupported(model: nn.Module, what: str, models: Sequence[str] = ()) -> UserError:
    """An error for a capability that a model lacks."""
    hint = f"; models that do: {', '.join(models)}" if models else ""
    return UserError(f"model {model_name(model)!r} does not support {what}{hint}")
