"""Values by key that gateways share beside the logs of their spaces, each for some time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ValuesAway(Exception):
    """The store does not answer, or refuses."""


class SharedValues(Protocol):
    """Values that several gateways have in common; used on the gateway's loop.

    Each method raises :exc:`ValuesAway` where what it asked for is not known to be done; those that
    end in ``_later`` go on while their caller does, and raise nothing.
    """

    async def get(self, key: str) -> bytes | None:
        """The value of a key; ``None``: there is none."""
        ...

    async def put(self, key: str, value: bytes) -> None:
        """Let a key have a value, for some time from now on."""

    async def add(self, key: str, value: bytes) -> bytes:
        """Let a key that has no value have this one; the value that it has then."""
        ...

    async def take(self, key: str) -> bool:
        """Remove a value: true for one of all that try, false where there is none."""
        ...

    def put_later(self, key: str, value: bytes) -> None:
        """Let a key have a value, for some time from then on."""

    def remove_later(self, key: str) -> None:
        """Remove a value, and every trace of it."""


OpenValues = Callable[[str, float], SharedValues]
"""Opens values by a name and the seconds after which they are forgotten; 0: never."""
