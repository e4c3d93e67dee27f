"""Write agents that propose, decide, call tools and stop when they are told to.

The names here are what the author of an agent types; exceptions are in :mod:`meup_agent.errors`,
events in :mod:`meup_agent.events`, further records in :mod:`meup_agent.types`. Importing the
package starts nothing and configures nothing. Each name is loaded when it is first used, so that a
gateway loads no agent and no pydantic.
"""

from __future__ import annotations

from meup_agent import lazy_names

_NAMES = lazy_names.read_names(__spec__)

__all__ = sorted(_NAMES)  # pyright: ignore[reportUnsupportedDunderAll] - the stub has it


def __getattr__(name: str) -> object:
    """A public name, loaded when it is first used (PEP 562)."""
    try:
        value = lazy_names.load_name(__name__, _NAMES, name)
    except BaseException as error:
        from meup_agent.uncaught import report_briefly, was_interrupted

        if was_interrupted(error):  # by Ctrl-C in the first moment of a program
            report_briefly()
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Every name, loaded or not."""
    return sorted({*globals(), *_NAMES})
