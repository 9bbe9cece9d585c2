"""Configurations: frozen and validated records, read from YAML and changed by dotted field names."""

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
    """Base of all configurations: frozen, without unknown fields, validated on construction."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def defaults_of(self, part: str, name: str) -> dict[str, Any] | None:
        """Default fields of `part` for the choice `name`; None if unknown. See `override`."""
        return None

    @classmethod
    def make(cls: type[C], values: Mapping[str, Any]) -> C:
        """Construct from a mapping; invalid values raise a `UserError` of one line."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(shorten(one_line(error, cls))) from None


def one_line(error: ValidationError, config: type[BaseModel]) -> str:
    """The first error of pydantic as `field.path: message`."""
    first = error.errors()[0]
    path = shorten(".".join(str(part) for part in first["loc"]), 200)
    if first["type"] == "extra_forbidden":
        owner = _config_class_at(config, first["loc"])
        known = owner.model_fields if owner else ()
        return f"{path}: no such field; {did_you_mean(str(first['loc'][-1]), known)}"
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if first["type"] in ("value_error", "missing"):
        return f"{path}: {message}" if path else message
    return f"{path}: {message}, got {brief(first['input'])}"


def _config_class_at(config: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The nested config class that contains the field `loc`."""
    owner: type[BaseModel] | None = config
    for part in loc[:-1]:
        field = owner.model_fields.get(str(part)) if owner else None
        inner = field.annotation if field else None
        owner = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
    return owner


def override(config: C, changes: Iterable[str]) -> C:
    """Apply changes `dotted.field=value`, with values in YAML, and validate the result.

    Changes `PART.name=NAME` are applied first: they replace all fields of the part by the defaults for NAME,
    if `config.defaults_of` provides them.
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
    return path.strip().split("."), _parse_value(change, text)


def _parse_value(change: str, text: str) -> Any:
    value = parse_yaml(text, f"--set {shorten(change, 80)}: the value")
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as text
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _assign(values: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the existing field at `path` in nested dictionaries."""
    node: Any = values
    for depth, part in enumerate(path):
        if not isinstance(node, dict) or part not in node:
            known = node if isinstance(node, dict) else ()
            name = shorten(".".join(path[: depth + 1]), 200)
            raise UserError(f"{name}: no such field; {did_you_mean(part, known)}")
        if depth == len(path) - 1:
            node[part] = value
        node = node[part]


def first_difference(
    old: Any, new: Any, path: str = "", *, template: str = "{path} was {old!r}, now {new!r}"
) -> str | None:
    """Describe by `template` the first leaf that differs between two JSON values; None if they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            key_path = f"{path}.{key}" if path else key
            if found := first_difference(old.get(key), new.get(key), key_path, template=template):
                return found
        return None
    return None if old == new else template.format(path=path, old=old, new=new)


def write_yaml(path: Path, config: Config) -> None:
    """Write a configuration as YAML."""
    write_text(path, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def read_yaml_values(path: Path) -> dict[str, Any]:
    """Read the fields of a YAML file as plain values, without validation."""
    how = "give the path of a config.yaml or dataset.yaml"
    values = parse_yaml(read_yaml_text(path, how=how), str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path} is not a configuration; expected fields and values")
    return {str(name): value for name, value in values.items()}


def read_yaml(path: Path, config_class: type[C]) -> C:
    """Read and validate a configuration from YAML."""
    values = read_yaml_values(path)
    try:
        return config_class.make(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
