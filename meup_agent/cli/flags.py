"""Flags in a help, which Typer shows with `<bool>`, as if a value belonged behind them."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose flags are shown as what they are."""

    # Typer keeps a copy of click, whose names are not public.
    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, ``--help`` included."""
        return _bare_flags(super().get_params(ctx))


class Group(TyperGroup):
    """The same of a command that has others."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, ``--help`` included."""
        return _bare_flags(super().get_params(ctx))


def _bare_flags(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters
