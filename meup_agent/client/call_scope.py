"""Call scopes: a caller that cancels its own calls, and says why."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

from meup_agent.causes import Cause, Reason

if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType
    from typing import Self

_current: ContextVar[CallScope | None] = ContextVar("meup_agent.call_scope", default=None)


class CallScope:
    """A block whose calls can be cancelled from outside, with a reason that travels along.

    The block is cancelled as that of :class:`anyio.CancelScope` is; what was begun in it (requests,
    calls, proposals, also by its tasks) is cancelled or withdrawn with the reason, in every process
    that it reached. Scopes nest: of those that were cancelled, the innermost gives the reason.

    Example::

        with CallScope() as scope:
            on_stop_button = partial(scope.cancel, text="stopped by the user")
            result = await space.call("printer", "print", {"page": 1})
        if scope.cancelled:
            ...
    """

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._outer: CallScope | None = None
        self._reason: tuple[str, str] | None = None
        self._token: Token[CallScope | None] | None = None

    @property
    def cancelled(self) -> bool:
        """True once the block has ended because it was cancelled here."""
        return self._scope.cancelled_caught

    def cancel(self, reason: str = Reason.NO_LONGER_NEEDED, *, text: str = "") -> None:
        """Cancel the block; the first reason stays. No effect once the block has ended.

        Args:
            reason: The reason code that the others see.
            text: Free text for those who read it, for example the words of a person.
        """
        if self._reason is None:
            self._reason = (str(reason), text)
        self._scope.cancel(f"{reason}: {text}" if text else str(reason))

    def cause(self, by: str, at: float) -> Cause | None:
        """The cause of what ends with the block; ``None`` if no scope here was cancelled."""
        if self._reason is None:
            return None if self._outer is None else self._outer.cause(by, at)
        code, text = self._reason
        return Cause(code, by, text, at=at)

    def __enter__(self) -> Self:
        """Begin the block."""
        self._scope.__enter__()
        self._outer = _current.get()
        self._token = _current.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """End the block."""
        assert self._token is not None
        _current.reset(self._token)
        return bool(self._scope.__exit__(kind, error, traceback))


def cause_of_calls(by: str, at: float) -> Cause | None:
    """The cause that the call scopes here give; ``None`` if none was cancelled."""
    scope = _current.get()
    return None if scope is None else scope.cause(by, at)
