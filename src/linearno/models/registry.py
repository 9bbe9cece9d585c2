"""Models by name. A model's constructor signature is its configuration."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import ConfigDict, PydanticUserError, create_model
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.core.registry import Registry
from linearno.data import FieldSpec
from linearno.nn.protocol import GRID_NEED, ModelConfig, ModelSpec, Probabilistic, SelfFitting, settings_of

SIZES = ("coords", "inputs", "outputs")  # constructor arguments that come from the data
AUTHORS_AND_YEAR = re.compile(r"\(([^()]*?\d{4})\b")  # in the first line of a docstring
ADDRESS = re.compile(r"https?://[^\s()]*[^\s().,]")

Family = Literal[
    "slice attention",
    "latent attention",
    "linear attention",
    "spectral",
    "points and graphs",
    "reconstruction",
    "classical",
    "other",
]

Needs = Sequence[str] | Callable[[Any], Sequence[str]]
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class PublishedFormat:
    """How the published code of a model names and shapes its weights, for `from_published`.

    Args:
        infer: (weights, hints) → constructor arguments (sizes and settings) that follow from the shapes of
            the weights and from hints; None for weights of another format. An argument that follows from
            neither is left out. A `KeyError` is reported as missing weights, a `ValueError` as wrong shapes.
        names: pairs (regular expression, replacement) from published names to those of the module, applied in
            order.
        hints: what shapes do not determine, as keywords of `from_published`, such as "grid" or "coords".
        unused: regular expression of weights that the published model stores and never reads. They are kept
            as parameters in `model.unused`, so that parameter counts agree.
        convert: last change to the renamed weights by name: reshape, split or join them.
    """

    infer: Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, Any] | None]
    names: Sequence[tuple[str, str]]
    hints: tuple[str, ...] = ()
    unused: str = r"(?!)"
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None


@dataclass(frozen=True)
class ModelEntry:
    """A registered model.

    Args:
        name: the name in recipes and configurations.
        cls: the module class.
        config: settings, derived from the signature of `cls`.
        needs: what `forward` takes beyond coordinates and inputs; may depend on the settings.
        sizes: constructor arguments that come from the data.
        published: formats of published weights.
        family: the group of architectures that the model is listed with.
    """

    name: str
    cls: type[nn.Module]
    config: type[ModelConfig]
    needs: Needs
    sizes: tuple[str, ...]
    published: tuple[PublishedFormat, ...] = ()
    family: Family = "other"

    def needs_of(self, config: ModelConfig) -> tuple[str, ...]:
        return tuple(self.needs(config) if callable(self.needs) else self.needs)

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.cls) or "").partition("\n")[0]

    @property
    def paper(self) -> tuple[str, str]:
        """Authors and year from the first line of the docstring, and its first address; "" if absent."""
        authors = AUTHORS_AND_YEAR.search(self.summary)
        address = ADDRESS.search(inspect.getdoc(self.cls) or "")
        return authors[1] if authors else "", address[0] if address else ""

    def documented(self) -> dict[str, str]:
        """Description of each argument, from the `Args:` section of the docstring."""
        found: dict[str, str] = {}
        name = None
        for line in (inspect.getdoc(self.cls) or "").partition("Args:\n")[2].splitlines():
            text = line.strip()
            head, colon, rest = text.partition(": ")
            if line.startswith("    ") and not line.startswith("     ") and colon and head.isidentifier():
                name, found[head] = head, rest
            elif name and text:
                found[name] += f" {text}"
            elif not text:
                break
        return found


MODELS: Registry[ModelEntry] = Registry(
    "model", plugins="linearno.models", hint="a model in a file of your own is given with --import FILE.py"
)


def model(
    name: str,
    *,
    needs: Needs = (),
    published: Sequence[PublishedFormat] = (),
    family: Family = "other",
) -> Callable[[type[M]], type[M]]:
    """Register a module class; its constructor signature becomes its configuration.

    Constructor arguments `coords`, `inputs`, `outputs` (numbers of channels) and a required `grid` come from
    the data. All others are settings: they need a type, and appear in YAML, in `--set model.FIELD=VALUE` and
    in saved runs. A check across settings raises `ValueError`.

    Args:
        name: the name in recipes and configurations.
        needs: what `forward` takes beyond `coords` and `inputs`, as keywords: "time", "positions" (unscaled
            coordinates), "points" (where to predict, for field reconstruction), "surface", or an auxiliary
            field of the data such as "edges"; "grid" asks for data on a grid. A function of the settings
            where it depends on them.
        published: formats of published weights, for `from_published` and `linearno import`.
        family: the group of architectures under which `linearno models` lists the model.

    >>> @model("scaled")
    ... class Scaled(nn.Module):
    ...     def __init__(self, *, coords: int, inputs: int, outputs: int, width: int = 32): ...
    ...     def forward(self, coords, inputs=None): ...
    """

    def add(cls: type[M]) -> type[M]:
        if (known := MODELS.registered(name)) is not None:
            owner = f"{known.cls.__module__}.{known.cls.__qualname__}"
            raise UserError(f"model {name!r} is registered already, by {owner}; choose another name")
        MODELS.register(name)(_record_arguments(cls, name, needs, tuple(published), family))
        return cls

    return add


def self_fitting(name: str) -> bool:
    """Whether the model of that name is fitted in closed form instead of by gradient steps."""
    return issubclass(MODELS[name].cls, SelfFitting)


def probabilistic(name: str) -> bool:
    """Whether the model of that name predicts a standard deviation with the mean."""
    return issubclass(MODELS[name].cls, Probabilistic)


def build_model(config: ModelConfig, spec: FieldSpec) -> nn.Module:
    """The model that `config` describes, sized for the data that `spec` describes."""
    found = MODELS[config.name]
    if GRID_NEED in found.needs_of(config) and spec.grid is None and getattr(config, "grid", None) is None:
        raise UserError(f"model {config.name!r} needs data on a grid, these have none; choose another model")
    settings = settings_of(config)
    if "grid" in settings and settings["grid"] is None:
        settings["grid"] = spec.grid
    sizes: dict[str, Any] = {name: len(getattr(spec, name)) for name in SIZES if name in found.sizes}
    if "grid" in found.sizes:
        sizes["grid"] = spec.grid
    return found.cls(**sizes, **settings)


def rebuild_model(name: str, sizes: Mapping[str, Any], settings: Mapping[str, Any]) -> nn.Module:
    """The model that a saved bundle describes."""
    found = MODELS[name]
    if missing := [size for size in found.sizes if size not in sizes]:
        raise UserError(f"model.{missing[0]}: missing; it is the number of {missing[0]} of the model")
    return found.cls(**{size: sizes[size] for size in found.sizes}, **settings)


def _record_arguments(
    cls: type[M], name: str, needs: Needs, published: tuple[PublishedFormat, ...], family: Family
) -> ModelEntry:
    """Derive the configuration of `cls`, and let its constructor check arguments and record them."""
    if isinstance(needs, str):
        raise UserError(f"{cls.__name__}: needs={needs!r} is a text; give a tuple, ({needs!r},)")
    original = cls.__init__
    parameters = _parameters(cls)
    _require_keywords(cls, () if callable(needs) else needs)
    sizes = tuple(
        p.name for p in parameters if p.name in SIZES or (p.name == "grid" and p.default is p.empty)
    )
    config = _derive_config(cls, name, [p for p in parameters if p.name not in sizes])
    entry = ModelEntry(name, cls, config, needs, sizes, published, family)
    positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]

    @wraps(original)
    def __init__(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        if type(self) is not cls:  # a subclass: what it passes on is its own business
            original(self, *args, **kwargs)
            return
        if len(args) > len(positional):
            raise TypeError(f"{cls.__name__} takes {len(positional)} positional arguments, got {len(args)}")
        given = dict(zip(positional, args, strict=False)) | kwargs
        settings = config.make({key: value for key, value in given.items() if key not in sizes})
        found = {key: _size(key, given[key]) for key in sizes if key in given}
        try:
            original(self, **found, **settings_of(settings))
        except ValueError as error:
            raise UserError(str(error)) from error
        defaults = {p.name: p.default for p in parameters if p.name in sizes}
        self.__dict__["_model_spec"] = ModelSpec(settings, defaults | found, entry.needs_of(settings))

    cls.__init__ = __init__  # type: ignore[method-assign]
    return entry


def _require_keywords(cls: type[nn.Module], needs: Sequence[str]) -> None:
    """Every need is an argument of `forward`, but for the grid, which is one of the constructor."""
    taken = inspect.signature(cls.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        return
    for need in needs:
        if need != GRID_NEED and need not in taken:
            raise UserError(f"{cls.__name__} needs {need!r}, but its forward has no argument of that name")


def _parameters(cls: type[nn.Module]) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    for p in parameters:
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            raise UserError(f"{cls.__name__}.__init__ takes *{p.name}: name every setting, one by one")
        if p.annotation is p.empty and p.name not in SIZES:
            raise UserError(
                f"{cls.__name__}.__init__: {p.name} has no type; write {p.name}: int, or what it is"
            )
        if p.name == "name":
            raise UserError(f"{cls.__name__}.__init__: no setting may be called 'name'; choose another")
    if "outputs" not in [p.name for p in parameters]:
        raise UserError(f"{cls.__name__}.__init__ takes no outputs: the number of channels to predict")
    return parameters


def _derive_config(cls: type[nn.Module], name: str, settings: list[inspect.Parameter]) -> type[ModelConfig]:
    try:
        hints = get_type_hints(cls.__init__, include_extras=True)
        fields: dict[str, Any] = {"name": (Literal[name], name)} | {
            p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in settings
        }
        return create_model(
            f"{cls.__name__}Config",
            __base__=_Derived,
            __module__=cls.__module__,
            __doc__=cls.__doc__,
            **fields,
        )
    except (NameError, PydanticUserError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{cls.__name__}.__init__: its types make no configuration ({reason})") from None


class _Derived(ModelConfig):
    model_config = ConfigDict(protected_namespaces=())


def _size(name: str, value: Any) -> Any:
    if name == "grid":
        return None if value is None else tuple(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"{name}: expected a number of channels, got {value!r}")
    return value
