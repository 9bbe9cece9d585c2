"""A group of verbs, each imported when it is called: PyTorch and Matplotlib take seconds to import."""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.models import ArgumentInfo, OptionInfo

from linearno.cli import quiet_interrupt

SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # plain help pages, whose words wrap at any width
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


METAVARS = {int: "N", float: "X", Path: "PATH", str: "TEXT"}


class Verb(NamedTuple):
    """A verb: `module:name` of its function or Typer app, and its line in the overview."""

    target: str
    summary: str


class PlainGroup(TyperGroup):
    """Lists its commands with their whole first sentences, wrapped instead of cut off."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            rows = [(name, command.help or "") for name, command in self.commands.items()]
            formatter.write_dl([(name, text.split("\n\n")[0]) for name, text in rows])


class LazyGroup(TyperGroup):
    """Verbs in `sections`, by title and name, with targets in `package`. Only the called one is imported."""

    package: ClassVar[str] = ""
    sections: ClassVar[Mapping[str, Mapping[str, Verb]]] = {}

    def __init__(self, **attributes: Any):
        super().__init__(**attributes)
        _keep_examples(self)
        for verbs in self.sections.values():
            for name, verb in verbs.items():
                self.add_command(TyperCommand(name, help=verb.summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        for verbs in self.sections.values():
            if name is not None and name in verbs:
                command = load_verb(name, f"{self.package}.{verbs[name].target}")
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        widest = max(len(name) for verbs in self.sections.values() for name in verbs)
        for title, verbs in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{widest}}", verb.summary) for name, verb in verbs.items()])


def load_verb(name: str, target: str) -> Any:
    """Import `module:name` and make a command of it."""
    module, _, attribute = target.partition(":")
    with quiet_interrupt():
        found = getattr(import_module(module), attribute)
    holder = typer.Typer(add_completion=False, **SETTINGS)
    if isinstance(found, typer.Typer):
        for each in found.registered_commands:
            _name_values(each.callback)
        holder.add_typer(found, name=name, cls=PlainGroup)
        group: Any = get_command(holder)
        command = group.commands[name]
    else:
        _name_values(found)
        holder.command(name)(found)
        command = get_command(holder)
    _keep_examples(command)
    return command


def _name_values(function: Callable[..., Any] | None) -> None:
    """Set short metavars: the name of an argument, one for the type of an option's value."""
    for name, hint in get_type_hints(function, include_extras=True).items():
        info = next(iter(getattr(hint, "__metadata__", ())), None)
        if isinstance(info, ArgumentInfo):
            info.metavar = info.metavar or name.rstrip("_").upper()
        elif isinstance(info, OptionInfo):
            kind = hint.__origin__  # such as `list[Path] | None`
            kinds = [kind, *get_args(kind), *(inner for part in get_args(kind) for inner in get_args(part))]
            known = [METAVARS[each] for each in kinds if each in METAVARS]
            info.metavar = info.metavar or next(iter(known), None)


def _keep_examples(command: Any) -> None:
    """Keep the lines of indented paragraphs in a help page; other paragraphs are wrapped."""
    if command.help:
        command.help = re.sub(r"(^|\n\n)(?= )", "\\1\b\n", command.help)
    for sub in getattr(command, "commands", {}).values():
        _keep_examples(sub)
