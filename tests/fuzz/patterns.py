"""Capability patterns of strangers, and values to match them with.

Each line is JSON: the first a list of capabilities, a pattern, or a string pattern; the others
values. Compiling refuses in order, and matching takes bounded work.
"""

import json
import time
from contextlib import suppress
from typing import Any

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability import (
    compile_announced,
    compile_capabilities,
    compile_kind,
    compile_pattern,
)
from meup_agent.protocol.capability.patterns import Reading

NAME = "patterns"

MAX_SECONDS = 5.0
"""Of CPU for one match: some hundred times what the slowest takes where nothing is wrong."""

SEEDS = [
    b'[{"kind":"mcp/*","payload":{"method":"tools/*","params":{"name":["write_*","!rm"]}}}]\n'
    b'{"method":"tools/call","params":{"name":"write_file","arguments":{"path":"a/b"}}}',
    b'"/(a|a)*b[^x]{1,50}$/"\n"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"',
    b'"{a,b{c,d}}**/**/x?[!a-z]*"\n"a/b/c/d/e/f/g/x/1/2"',
    b'{"**":{"path":"!/\\\\.\\\\./"},"$..a.b[*]":1,"x*":true}\n{"a":{"b":[1,2]},"path":"../etc","xy":true}',
    b'[{"kind":["chat","!system/*"],"payload":{}}]\n{"text":"x"}\n[[[]]]',
]


def run(data: bytes) -> None:
    """Compile the first line every way there is, and match the others with it."""
    values = [value for line in data.split(b"\n")[:20] for value in parsed(line)]
    if not values:
        return
    pattern, *others = values
    matchers = list(compiled(pattern))
    for value in others or [pattern]:
        for matches in matchers:
            began = time.process_time()
            first = matches(value)
            assert time.process_time() - began < MAX_SECONDS, "too much work"
            assert isinstance(first, bool)
            assert matches(value) is first


def parsed(line: bytes) -> list[Any]:
    """The JSON value of a line, if it is one that a frame could hold."""
    try:
        text = line.decode()
        value = json.loads(text, parse_constant=lambda name: None)
        json.dumps(value).encode().decode()
        value_text = json.dumps(value, ensure_ascii=False)
        value_text.encode()
    except (ValueError, RecursionError):
        return []
    return [value] if text.count("[") + text.count("{") <= 100 else []


def compiled(pattern: Any) -> Any:
    """Everything that compiles, as functions of a value."""
    for reading in Reading:
        with suppress(InvalidPattern):
            yield compile_pattern(pattern, reading=reading).matches
    if isinstance(pattern, str):
        with suppress(InvalidPattern):
            of_kind = compile_kind(pattern)
            yield lambda value: of_kind(value) if isinstance(value, str) else False
    listed = pattern if isinstance(pattern, list) else [{"kind": "mcp/*", "payload": pattern}]
    for compile_all in (compile_capabilities, compile_announced):
        with suppress(InvalidPattern):
            capabilities = compile_all(listed)
            yield lambda value, allow=capabilities.allow: allow("mcp/request", value)
