"""URI templates of others (RFC 6570), read backwards: may a template have made a URI?

A template is a stranger's, so it becomes an RE2 expression; what is no template matches nothing.

``mcp.shared.uri_template`` (2.3.0), which also matches, refuses templates that RFC 6570 allows:
``{?q*}``, ``{v:3}``, ``{a}{b}``. It comes with the extra ``mcp``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from meup_agent.protocol.regex import compile_fullmatch

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TEMPLATE_CHARS: Final = 1_024
"""Characters of a template that is tried."""

MAX_TRIED_TEMPLATES: Final = 64
"""Templates of a participant that are compiled for one URI: each takes up to 100 µs."""

_COMPILED: Final = 1_024

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)([^{}]*)\}")
_VARIABLE: Final = re.compile(r"[\w.%]+(?:\*|:\d{1,4})?", re.ASCII)

_VALUES: Final = {
    "": r"[^/?#]+",
    "+": r".+",
    "#": r"(?:#.*)?",
    ".": r"(?:\.[^/?#]+)?",
    "/": r"(?:/[^?#]+)?",
    ";": r"(?:;[^/?#]*)?",
    "?": r"(?:\?[^#]*)?",
    "&": r"(?:&[^#]*)?",
}
"""Texts that an expression may stand for, by its operator (RFC 6570 3.2): with the separators that
its values bring along, and for most also nothing, which variables without a value expand to."""


def matches_any(templates: Iterable[str], uri: str) -> bool:
    """Tell whether one of a participant's templates may have made a URI."""
    tried = 0
    for template in templates:
        literal = template.partition("{")[0]
        if not uri.startswith(literal) or len(template) > MAX_TEMPLATE_CHARS:
            continue
        tried += 1
        if tried > MAX_TRIED_TEMPLATES:
            return False
        if _compiled(template)(uri.encode(errors="replace")):
            return True
    return False


@lru_cache(maxsize=_COMPILED)
def _compiled(template: str) -> Callable[[bytes], bool]:
    if set("{}") & set("".join(_EXPRESSION.split(template)[::3])):
        return _nothing
    pattern, end = list[str](), 0
    for found in _EXPRESSION.finditer(template):
        operator, variables = found.groups()
        if not all(_VARIABLE.fullmatch(each) for each in variables.split(",")):
            return _nothing
        pattern += [re.escape(template[end : found.start()]), _VALUES[operator]]
        end = found.end()
    pattern.append(re.escape(template[end:]))
    try:
        return compile_fullmatch("".join(pattern)).matches
    except ValueError:  # too large
        return _nothing


def _nothing(_: bytes) -> bool:
    return False
