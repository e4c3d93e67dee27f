"""MCP: servers into a space, a space out to MCP clients, with the official SDK (extra ``mcp``).

Importing this package needs nothing beyond the standard dependencies; its modules need the SDK.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:  # the names of _PUBLIC, for type checkers
    from meup_agent.mcp.task_client import TasksClientExtension as TasksClientExtension
    from meup_agent.mcp.tasks import TasksExtension as TasksExtension
    from meup_agent.mcp.tasks import TaskSupport as TaskSupport
    from meup_agent.mcp.tasks import install_extension as install_extension
else:  # or every name would pass for one of ours
    _PUBLIC = {
        "task_client": "TasksClientExtension",
        "tasks": "TaskSupport TasksExtension install_extension",
    }
    """Module of this package → the public names in it."""

    _MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

    __all__ = sorted(_MODULES)

    def __getattr__(name: str) -> object:
        """A public name, loaded when it is first used: the package is there without the SDK."""
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
