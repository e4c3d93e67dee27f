"""YAML without surprises, for the files that people write: configurations and policies.

PyYAML with one rule more. ``ruamel.yaml`` (0.19.1), which has that rule, reads existing files
otherwise: ``yes`` as a text, ``010`` as ten.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, cast

import yaml

from meup_agent.errors import ConfigurationError


def parse_yaml(raw: bytes, name: str = "", *, text_keys: bool = False) -> object:
    """The values of a document, of which no key stands twice; an error begins with its name.

    Args:
        raw: The document.
        name: Its name.
        text_keys: Refuse keys that are no texts, as its reader would, but as they are written.

    Raises:
        ConfigurationError: It is none.
    """
    loader = _TextKeysLoader if text_keys else _StrictLoader
    place = [name] if name else []
    try:
        return cast("object", yaml.load(raw.decode(), Loader=loader))
    except UnicodeDecodeError:
        problem = "expected YAML in UTF-8"
    except yaml.MarkedYAMLError as error:
        place += [f"line {error.problem_mark.line + 1}"] if error.problem_mark else []
        problem = f"expected YAML, but {_problem(error)}"
    except yaml.YAMLError:
        problem = "expected YAML in printable characters"
    except RecursionError:
        problem = "expected YAML that nests less deeply"
    except ValueError as error:
        # A word that has the form of a date, and is none: 2024-13-45.
        date = f"a value looks like a date and is none ({error})"
        problem = f"expected YAML, but {date}; put it in quotes"
    raise ConfigurationError(f"{', '.join(place)}: {problem}" if place else problem)


def _problem(error: yaml.MarkedYAMLError) -> str:
    """The problem of a document, in a sentence that says itself what was expected."""
    problem = str(error.problem)
    found = problem.rpartition(", but ")[2] if problem.startswith("expected ") else ""
    return found or problem


class _StrictLoader(yaml.SafeLoader):
    """A loader to which a key that stands twice is an error, not a loss of the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping; raises for a key that stands twice."""
        seen: set[tuple[str, str]] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise _bad_key(key, "stands twice")
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


_TEXTS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "merge", "value"))
"""Tags of keys that stay a text, or are `<<`: `no` has another one, and means false."""


class _TextKeysLoader(_StrictLoader):
    """A strict loader to which a key that is no text is an error, told as it is written."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping; raises for a key that stands twice, or is no text."""
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.tag not in _TEXTS:
                raise _bad_key(key, "is not read as a text; put it in quotes")
        return super().construct_mapping(node, deep)


def _bad_key(key: yaml.ScalarNode, problem: str) -> yaml.MarkedYAMLError:
    said = f"the key {key.value!r} {problem}"
    return yaml.constructor.ConstructorError(None, None, said, key.start_mark)
