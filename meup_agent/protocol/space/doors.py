"""How somebody comes to a space who was invited (PROTOCOL 3)."""

from __future__ import annotations

from typing import Final, Protocol


class Doors(Protocol):
    """How somebody comes to a space who is invited."""

    def new_token(self) -> str:
        """A token that nobody can guess."""
        ...

    def admit(self, participant: str, token_sha256: str) -> None:
        """Let a participant in by a token with this digest, and by no earlier one of this kind."""
        ...

    def address(self) -> str:
        """Where to dial the space; empty where that is not known."""
        ...


class _Closed:
    """The doors of a space to which nobody can be invited."""

    def new_token(self) -> str:
        raise NotImplementedError

    def admit(self, participant: str, token_sha256: str) -> None:
        pass

    def address(self) -> str:
        return ""


NO_DOORS: Final[Doors] = _Closed()
"""Those of a space to which nobody can be invited."""
