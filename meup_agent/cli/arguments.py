"""Arguments as a person types them: of a tool's call, read by its input schema, and capabilities.

Whether arguments fit is checked by :mod:`meup_agent.client.schema_check`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from meup_agent.cli.address import read_text
from meup_agent.cli.failures import Misuse
from meup_agent.errors import InvalidPattern
from meup_agent.escape import visible
from meup_agent.protocol.capability import compile_capabilities
from meup_agent.protocol.wire.envelope import MAX_FRAME_BYTES
from meup_agent.protocol.wire.payloads import as_list, as_object, objects_in

if TYPE_CHECKING:
    from meup_agent.client.schema_check import ArgumentChecker

STDIN: Final = "-"  # in place of a text: it is read from standard input
MAX_SHOWN: Final = 60  # characters of a name that are shown

MAX_DEPTH: Final = 3
"""Alternatives and items within each other that are looked at: ``list[str | int] | None``."""

MAX_ALTERNATIVES: Final = 8
"""Alternatives that are looked at: more say nothing, since their number is taken to the power of
the depth, and any of them may refer to all of them again."""

MAX_REFERENCES: Final = 8  # references that lead to each other
MAX_ARGUMENTS: Final = 256  # arguments of a tool that are looked at
MAX_VALUES: Final = 64  # fixed values that are looked at
_DEFINITION: Final = ("#/$defs/", "#/definitions/")

_NAMES: Final[dict[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class GivenArguments(NamedTuple):
    """The arguments as they were given: a JSON object, and ``key=value``, which wins over it."""

    whole: dict[str, Any]
    pairs: dict[str, str]


def read_arguments(words: list[str], args: str | None, args_file: Path | None) -> GivenArguments:
    """Read ``key=value`` words and a JSON object."""
    if words.count(STDIN) + (args is not None) + (args_file is not None) > 1:
        raise Misuse("the arguments are given twice; give one of --args, --args-file and -")
    pairs: dict[str, str] = {}
    for word in words:
        if word == STDIN:
            continue
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise Misuse(f"{word!r} is not an argument for a tool; write it as key=value")
        if name in pairs:
            raise Misuse(f"the argument {name!r} is given twice; for a list use --args")
        pairs[name] = text
    whole: dict[str, Any] = {}
    if args is not None:
        whole = _object(args, "--args")
    elif args_file is not None:
        whole = _object(read_text(args_file, "the arguments in"), str(args_file))
    elif STDIN in words:
        whole = _object(read_stdin(), "standard input")
    return GivenArguments(whole, pairs)


def read_stdin() -> str:
    """Read standard input to its end, up to what fits into an envelope."""
    data = sys.stdin.buffer.read(MAX_FRAME_BYTES + 1)
    if len(data) > MAX_FRAME_BYTES:
        raise Misuse(f"standard input has more than the {MAX_FRAME_BYTES} bytes that can be sent")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Misuse("standard input is not text in UTF-8") from None


def convert_arguments(
    given: GivenArguments, inputs: ToolInputs | None = None, checker: ArgumentChecker | None = None
) -> dict[str, Any]:
    """The arguments as JSON values.

    A value in ``key=value`` is JSON where it is JSON, and text otherwise; an argument that takes
    text, and nothing that the value is, stays text: ``path=5``.
    """
    known = {} if inputs is None else inputs.arguments
    arguments = dict(given.whole)
    for name, text in given.pairs.items():
        arguments[name] = _value(text, known.get(name))
    problems = checker.problems(arguments) or [] if checker is not None else []
    if problems:
        said = "; ".join(
            f"{each}{did_you_mean(each.argument, known) if each.argument not in known else ''}"
            for each in problems
        )
        raise Misuse(f"the tool was not called, since these arguments do not fit it: {said}")
    return arguments


def unknown_arguments(arguments: dict[str, Any], inputs: ToolInputs) -> list[str]:
    """Remarks on arguments that a tool neither names nor refuses."""
    return [
        f"the tool has no argument {name!r}{did_you_mean(name, inputs.arguments)}"
        for name in arguments
        if name not in inputs.arguments and not inputs.others
    ]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name, list(names), n=3)
    hint = " or ".join(visible(each, MAX_SHOWN) for each in close)
    return f" (did you mean {hint}?)" if hint else ""


def _value(text: str, argument: InputField | None) -> Any:
    try:
        value = read_json(text)
    except ValueError:
        return text
    if argument is not None and "string" in argument.types:
        # Quotes that reached us are part of the text: the shell has taken its own.
        return text if isinstance(value, str) or not argument.takes(value) else value
    return value


def read_json(text: str) -> Any:
    """Read JSON; what is none, or is nested too deeply, raises ``ValueError``."""

    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _object(text: str, where: str) -> dict[str, Any]:
    if not text.strip():
        raise Misuse(f"there are no arguments in {where}; give a JSON object")
    try:
        value = read_json(text)
    except ValueError as error:
        raise Misuse(f"the arguments in {where} are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Misuse(f'the arguments in {where} are not a JSON object, such as {{"path": "a.txt"}}')
    return cast("dict[str, Any]", value)


# --- capabilities ---


def read_capabilities(written: list[str] | None) -> list[dict[str, Any]]:
    """Read capabilities, each a kind or a JSON object."""
    read = [_capability(each) for each in written or []]
    try:
        compile_capabilities(read)
    except InvalidPattern as error:
        raise Misuse(f"this is not a capability: {error}") from None
    return read


def _capability(written: str) -> dict[str, Any]:
    if not written.lstrip().startswith("{"):
        return {"kind": written}
    try:
        return cast("dict[str, Any]", read_json(written))
    except ValueError as error:
        raise Misuse(f"{written!r} is not JSON: {error}") from None


# --- a tool's input schema: a stranger's, so it is followed only so far ---


class InputField(NamedTuple):
    """One argument of a tool."""

    name: str
    types: frozenset[str]  # JSON types; empty: any
    required: bool
    default: str  # as JSON; empty: the schema has none
    about: str
    words: str  # its type, for a person

    def takes(self, value: object) -> bool:
        """True if a value has one of its types."""
        kind = type_of(value)
        if not self.types or kind in self.types:
            return True
        if kind == "integer":
            return "number" in self.types
        return "integer" in self.types and isinstance(value, float) and value.is_integer()


class ToolInputs(NamedTuple):
    """The arguments of a tool."""

    arguments: dict[str, InputField]
    others: bool  # it expects others, too, which the schema does not name


def read_input_schema(schema: object) -> ToolInputs:
    """Read an input schema; what cannot be understood may be anything."""
    root = as_object(schema)
    names = as_list(root.get("required"))
    properties = list(as_object(root.get("properties")).items())[:MAX_ARGUMENTS]
    arguments = {name: _argument(name, body, root, name in names) for name, body in properties}
    return ToolInputs(arguments, root.get("additionalProperties", False) is not False)


def type_of(value: object) -> str:
    return _NAMES.get(type(value), "object")


def _argument(name: str, body: object, root: dict[str, Any], required: bool) -> InputField:
    said = as_object(body)
    resolved = _resolved(said, root)
    about = said.get("description", resolved.get("description"))
    return InputField(
        name=name,
        types=_types(said, root, MAX_DEPTH),
        required=required,
        default=json.dumps(said["default"], ensure_ascii=False) if "default" in said else "",
        about=about if isinstance(about, str) else "",
        words=_words(said, root, MAX_DEPTH),
    )


def _resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference names, or the schema itself."""
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith(_DEFINITION):
            break
        name = reference.rpartition("/")[2]
        definitions = as_object(root.get(reference.split("/")[1]))
        schema = as_object(definitions.get(name))
    return schema


def _values(schema: dict[str, Any]) -> tuple[Any, ...]:
    if "const" in schema:
        return (schema["const"],)
    values = as_list(schema.get("enum"))
    return tuple(values) if len(values) <= MAX_VALUES else ()


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = objects_in(schema.get("anyOf", schema.get("oneOf")))
    return found if len(found) <= MAX_ALTERNATIVES else []


def _types(schema: dict[str, Any], root: dict[str, Any], depth: int) -> frozenset[str]:
    """The JSON types that a schema allows; empty: any."""
    schema = _resolved(schema, root)
    said = schema.get("type")
    if isinstance(said, str):
        return frozenset({said})
    if isinstance(said, list):
        return frozenset(each for each in cast("list[object]", said) if isinstance(each, str))
    if values := _values(schema):
        return frozenset(map(type_of, values))
    alternatives = _alternatives(schema)
    if not alternatives or depth == 0:
        return frozenset()
    each = [_types(one, root, depth - 1) for one in alternatives]
    return frozenset[str]().union(*each) if all(each) else frozenset()


def _words(schema: dict[str, Any], root: dict[str, Any], depth: int) -> str:
    """A type for a person: ``string or null``, ``array of integer``."""
    schema = _resolved(schema, root)
    if values := _values(schema):
        return " | ".join(json.dumps(each, ensure_ascii=False) for each in values)
    alternatives = _alternatives(schema)
    if alternatives and depth:
        return " or ".join(dict.fromkeys(_words(one, root, depth - 1) for one in alternatives))
    types = _types(schema, root, 0)
    if types == frozenset({"array"}) and depth and (items := as_object(schema.get("items"))):
        return f"array of {_words(items, root, depth - 1)}"
    return " or ".join(sorted(types)) or "any"
