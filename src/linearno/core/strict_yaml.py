"""YAML with plain values only: no aliases, no merge keys, no duplicate keys, limited in size.

An alias can refer to a value that holds further aliases, so a few hundred bytes can expand to gigabytes.
"""

from pathlib import Path
from typing import Any

import yaml

from linearno.core.errors import UserError, brief, require, shorten

MAX_BYTES = 2**20
MERGE_TAG = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Safe loader that rejects aliases, merge keys and duplicate keys."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            problem = f"the alias *{shorten(event.anchor, 80)} is not supported; write the value out"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if key.tag == MERGE_TAG:
                raise _error("the merge key << is not supported; write the fields out", key)
        mapping = super().construct_mapping(node, deep)
        seen = set()
        for key, _ in node.value:
            name = str(self.construct_object(key, deep=True))
            if name in seen:
                raise _error(f"the key {brief(name)} occurs twice; remove one", key)
            seen.add(name)
        return mapping


def _error(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def read_yaml_text(path: Path, *, how: str) -> str:
    """Read the text of a YAML file of at most `MAX_BYTES`; `how` says in errors what to do."""
    try:
        with require(path, how=how).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UserError(
                f"{path} is larger than {MAX_BYTES:,} bytes, the limit for a configuration; {how}"
            )
        return content.decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; {how}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid YAML: byte {error.start} is not UTF-8; {how}") from None


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML text into plain values; errors name `source`, the line and the problem."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        problem = shorten(error.problem or error.context or "unknown problem")
        raise UserError(f"{source} is not valid YAML: {line}{problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{source} is not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UserError(f"{source} is not valid YAML: values are nested too deeply") from None
    except (ValueError, OverflowError) as error:  # such as a date with a 13th month
        raise UserError(f"{source} is not valid YAML: {shorten(str(error))}") from None
