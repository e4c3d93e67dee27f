"""Whether arguments fit a tool's ``inputSchema``, which is a stranger's.

Whatever is too large, or cannot be read, is left to whoever has the tool: it checks its arguments
itself.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any, Final, cast

from meup_agent.client.problems import MAX_PROBLEM_CHARS, MAX_PROBLEMS, Problem, problem_of
from meup_agent.client.validators import TooManySteps, steps_counted, validator_for
from meup_agent.errors import printable
from meup_agent.protocol.envelope import encode_leniently

log = logging.getLogger("meup_agent.client")

MAX_SCHEMA_BYTES: Final = 65_536
"""Of one tool's schema; a larger one is left to its tool."""


class Checker:
    """Checks arguments against one schema.

    Args:
        validator: What the library made of it.
        whose: The tool, for the log.
    """

    def __init__(self, validator: Any, whose: str) -> None:
        self._validator = validator
        self._whose = whose
        self._useless = self._said_too_much = False

    def problems(self, arguments: object) -> list[Problem]:
        """What does not fit, at most :data:`MAX_PROBLEMS`; nothing where that cannot be told.

        Args:
            arguments: JSON values.
        """
        if self._useless:
            return []
        try:
            with steps_counted():
                errors = self._validator.iter_errors(arguments)
                found = [problem_of(error) for error in islice(errors, MAX_PROBLEMS)]
                return list(dict.fromkeys(found))
        except TooManySteps:
            # With other arguments it may take fewer.
            if not self._said_too_much:
                self._said_too_much = True
                log.info("some arguments of %s are left to itself: too much to check", self._whose)
        except Exception as error:  # whatever a stranger's schema makes of the library
            self._useless = True
            _log_unreadable(self._whose, error)
        return []


def checker_for(schema: object, whose: str) -> Checker | None:
    """A checker for a schema; ``None``, and a line in the log, for one that cannot be read.

    Args:
        schema: JSON values, whatever somebody gave as ``inputSchema``.
        whose: The tool, for the log.
    """
    try:
        if not isinstance(schema, dict):
            raise TypeError("it is no object")
        body = cast("dict[str, Any]", schema)
        if len(encode_leniently(body)) > MAX_SCHEMA_BYTES:
            raise ValueError(f"it is larger than {MAX_SCHEMA_BYTES} bytes")
        return Checker(validator_for(body), whose)
    except Exception as error:  # as above
        _log_unreadable(whose, error)
        return None


def _log_unreadable(whose: str, error: Exception) -> None:
    said = printable(str(error))[:MAX_PROBLEM_CHARS]
    log.info("the arguments of %s are left to itself: its schema cannot be read: %s", whose, said)
