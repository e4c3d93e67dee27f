"""Text of senders and exceptions, made short and printable before it goes into a message."""

from __future__ import annotations

from typing import get_origin

from pydantic import ValidationError


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters of a text; lone surrogates, which UTF-8 has not, are escaped."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()


def first_line(error: BaseException) -> str:
    """The message of an exception, as part of a sentence; its type if it has none.

    Libraries add links and dumps below the first line. Of a validation it is the first problem,
    without the value, which may be huge or secret.
    """
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = format_path(problem["loc"])
        return f"{where}: {problem['msg']}" if where else problem["msg"]
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__


def format_path(location: tuple[int | str, ...]) -> str:
    """The place of a problem in a value, as ``items[2].name``."""
    said = ""
    for step in location:
        said += f"[{step}]" if isinstance(step, int) else f".{step}" if said else step
    return said


def type_name(hint: object) -> str:
    """An annotation as its author would write it: ``int | None``, ``list[Item]``, ``Context``."""
    if isinstance(hint, str):
        return hint
    if isinstance(hint, type) and get_origin(hint) is None:
        return hint.__qualname__
    return str(hint).replace("typing.", "")


def join_names(names: list[str]) -> str:
    """Names for a sentence: ``Context, Envelope``; ``nothing`` if there are none."""
    return ", ".join(names) or "nothing"
