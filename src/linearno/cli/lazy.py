"""Command group that imports a verb when it is called: PyTorch and Matplotlib take seconds to import."""

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
    "rich_markup_mode": None,  # plain help pages that wrap at any width
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}

METAVARS = {int: "N", float: "X", Path: "PATH", str: "TEXT"}


class Verb(NamedTuple):
    """A verb of the command line.

    Args:
        target: `module:name` of its function or Typer app.
        summary: one line for the overview.
    """

    target: str
    summary: str


class PlainGroup(TyperGroup):
    """Lists its commands with their first paragraphs, wrapped instead of truncated."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            rows = [(name, command.help or "") for name, command in self.commands.items()]
            formatter.write_dl([(name, text.split("\n\n")[0]) for name, text in rows])


class LazyGroup(TyperGroup):
    """Group that imports only the called verb.

    Class attributes: `sections` maps titles to verbs by name; their targets are relative to `package`.
    """

    package: ClassVar[str] = ""
    sections: ClassVar[Mapping[str, Mapping[str, Verb]]] = {}

    def __init__(self, **attributes: Any):
        super().__init__(**attributes)
        _format_help(self)
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
    """Import `module:name`, a function or Typer app, and return its command."""
    module, _, attribute = target.partition(":")
    with quiet_interrupt():
        verb = getattr(import_module(module), attribute)
    app = typer.Typer(add_completion=False, **SETTINGS)
    if isinstance(verb, typer.Typer):
        for subcommand in verb.registered_commands:
            _set_metavars(subcommand.callback)
        app.add_typer(verb, name=name, cls=PlainGroup)
        group: Any = get_command(app)
        command = group.commands[name]
    else:
        _set_metavars(verb)
        app.command(name)(verb)
        command = get_command(app)
    _format_help(command)
    return command


def _set_metavars(function: Callable[..., Any] | None) -> None:
    """Set short metavars: the name of an argument, the type of an option's value."""
    for name, hint in get_type_hints(function, include_extras=True).items():
        info = next(iter(getattr(hint, "__metadata__", ())), None)
        if isinstance(info, ArgumentInfo):
            info.metavar = info.metavar or name.rstrip("_").upper()
        elif isinstance(info, OptionInfo):
            annotation = hint.__origin__  # such as `list[Path] | None`
            inner = get_args(annotation)
            types = [annotation, *inner, *(type_ for part in inner for type_ in get_args(part))]
            known = [METAVARS[type_] for type_ in types if type_ in METAVARS]
            info.metavar = info.metavar or next(iter(known), None)


def _format_help(command: Any) -> None:
    """Do not wrap indented paragraphs (examples) of a help page; list arguments without Python types."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = _no_type
    if command.help:
        command.help = re.sub(r"(^|\n\n)(?= )", "\\1\b\n", command.help)
    for subcommand in getattr(command, "commands", {}).values():
        _format_help(subcommand)


def _no_type(ctx: Any) -> None:
    """In place of a label such as `<list[Path]>`."""
