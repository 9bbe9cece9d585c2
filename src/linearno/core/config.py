"""Configurations: frozen, complete, checked when made, and changeable by dotted names."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from linearno.core.atomic_io import write_text
from linearno.core.errors import UserError, brief, did_you_mean, shorten
from linearno.core.strict_yaml import parse_yaml, read_yaml_text

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """A frozen record that forbids unknown fields and rejects nonsense when it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def defaults_of(self, part: str, name: str) -> dict[str, Any] | None:
        """Fields of `part` if it were another one, called `name`; None where that is not known."""
        return None

    @classmethod
    def make(cls: type[C], values: Mapping[str, Any]) -> C:
        """The config with these values; what is wrong with them comes out as one line."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(shorten(one_line(error, cls))) from None


def one_line(error: ValidationError, config: type[BaseModel]) -> str:
    """The first complaint of pydantic as `field.path: what is wrong`."""
    first = error.errors()[0]
    path = shorten(".".join(str(part) for part in first["loc"]), 200)
    if first["type"] == "extra_forbidden":
        owner = _owner(config, first["loc"])
        known = owner.model_fields if owner else ()
        return f"{path}: no such field; {did_you_mean(str(first['loc'][-1]), known)}"
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if first["type"] in ("value_error", "missing"):
        return f"{path}: {message}" if path else message
    return f"{path}: {message}, got {brief(first['input'])}"


def _owner(config: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The nested config class that the last name of `loc` was looked up in."""
    owner: type[BaseModel] | None = config
    for part in loc[:-1]:
        field = owner.model_fields.get(str(part)) if owner else None
        inner = field.annotation if field else None
        owner = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
    return owner


def override(config: C, changes: Iterable[str]) -> C:
    """`config` with each `dotted.field=value` applied; values are read as YAML and checked by type.

    `PART.name=NAME` comes first and replaces the fields of that part by the defaults of what NAME is, where
    `config.defaults_of` knows them.
    """
    values = config.model_dump(mode="json")
    parsed = [_parse_change(change) for change in changes]
    for path, value in sorted(parsed, key=lambda change: change[0][-1] != "name"):
        part = values.get(path[0])
        if path[1:] == ["name"] and isinstance(part, dict) and part.get("name") not in (None, value):
            values[path[0]] = config.defaults_of(path[0], str(value)) or {**part, "name": value}
        else:
            _assign(values, path, value)
    return type(config).make(values)


def _parse_change(change: str) -> tuple[list[str], Any]:
    path, equals, text = change.partition("=")
    if not equals:
        raise UserError(f"--set {shorten(change, 80)}: expected FIELD=VALUE, for example training.epochs=50")
    return path.strip().split("."), _parse(change, text)


def _parse(change: str, text: str) -> Any:
    value = parse_yaml(text, f"--set {shorten(change, 80)}: the value")
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as text; nobody here means it so
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _assign(values: dict[str, Any], path: list[str], value: Any) -> None:
    here: Any = values
    for depth, part in enumerate(path):
        if not isinstance(here, dict) or part not in here:
            known = here if isinstance(here, dict) else ()
            name = shorten(".".join(path[: depth + 1]), 200)
            raise UserError(f"{name}: no such field; {did_you_mean(part, known)}")
        if depth == len(path) - 1:
            here[part] = value
        here = here[part]


def first_difference(
    old: Any, new: Any, path: str = "", *, words: str = "{path} was {old!r}, now {new!r}"
) -> str | None:
    """In `words` the first leaf that differs between two JSON values, if one does."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            below = f"{path}.{key}" if path else key
            if found := first_difference(old.get(key), new.get(key), below, words=words):
                return found
        return None
    return None if old == new else words.format(path=path, old=old, new=new)


def write_yaml(path: Path, config: Config) -> None:
    write_text(path, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def read_yaml_values(path: Path) -> dict[str, Any]:
    """The fields of a YAML file, whatever they are: plain values, nothing that runs."""
    how = "give the path of a config.yaml that a run wrote, or of a dataset.yaml"
    values = parse_yaml(read_yaml_text(path, how=how), str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no configuration; expected fields and values")
    return {str(name): value for name, value in values.items()}


def read_yaml(path: Path, kind: type[C]) -> C:
    values = read_yaml_values(path)
    try:
        return kind.make(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
