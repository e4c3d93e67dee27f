"""Questions to an MCP client during a call: elicitation, sampling, and its roots."""

from __future__ import annotations

from typing import Any, Final

import anyio
import mcp_types as types
from pydantic import TypeAdapter

ELICITATION: Final = "elicitation/create"
SAMPLING: Final = "sampling/createMessage"
ROOTS: Final = "roots/list"

CAPABILITIES: Final = {ELICITATION: "elicitation", SAMPLING: "sampling", ROOTS: "roots"}
"""Methods of questions → the capability that a client must have declared to be asked."""

ANSWERS: Final[dict[str, TypeAdapter[Any]]] = {
    ELICITATION: TypeAdapter(types.ElicitResult),
    SAMPLING: TypeAdapter(types.CreateMessageResult | types.CreateMessageResultWithTools),
    ROOTS: TypeAdapter(types.ListRootsResult),
}
"""Methods of questions → the form of their answers."""


class Question:
    """A question that a client answers by a later request.

    Attributes:
        answered: Set once :attr:`answer` is there.
    """

    def __init__(self, method: str, params: dict[str, Any]) -> None:
        self.method = method
        self.params = params
        self.answered = anyio.Event()
        self.answer: dict[str, Any] = {}

    def wire(self) -> dict[str, Any]:
        """The entry of ``inputRequests``."""
        return {"method": self.method, "params": self.params}


def is_declared(capabilities: types.ClientCapabilities | None, method: object) -> bool:
    """True if a client with some capabilities answers questions of a method."""
    declared = CAPABILITIES.get(method) if isinstance(method, str) else None
    return declared is not None and getattr(capabilities, declared, None) is not None
