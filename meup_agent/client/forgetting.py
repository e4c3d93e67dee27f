"""Forgetting ``await`` or ``async with`` fails where it is forgotten, with words."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar

from meup_agent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from meup_agent.client.proposing import ProposalHandle

P = ParamSpec("P")
T = TypeVar("T")

_PACKAGE: Final = __name__.partition(".")[0]
_running: Final = threading.local()


@contextmanager
def plain_handler(name: str) -> Generator[None]:
    """In the block this thread runs a handler that is not ``async``.

    It is the thread's own, and not a context variable's: what such a handler has the event loop do
    has the handler's context.
    """
    _running.name = name
    try:
        yield
    finally:
        del _running.name


def awaited(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Refuse a verb in a handler that cannot await it."""

    @functools.wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        name = getattr(_running, "name", None)
        if name is not None:
            raise UsageError(
                f"{verb.__name__}() was called by {name}, which is no async function, so nothing "
                f"was done; declare it with async def and await {verb.__name__}(), or call "
                f"anyio.from_thread.run(…) with it"
            )
        return verb(*args, **kwargs)

    return call


class Proposing:
    """A proposal about to be made: ``async with`` makes it, and gives the handle."""

    def __init__(self, block: AbstractAsyncContextManager[ProposalHandle]) -> None:
        self._block = block
        self._entered = False
        self._written = _place()

    async def __aenter__(self) -> ProposalHandle:
        """Propose."""
        self._entered = True
        return await self._block.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Withdraw it, if it is undecided."""
        return await self._block.__aexit__(kind, error, traceback)

    def __await__(self) -> NoReturn:
        self._refuse("it was awaited")

    def __enter__(self) -> NoReturn:
        self._refuse("it was entered without async")

    def __exit__(self, *_: object) -> None:
        """Never reached; for the words that :meth:`__enter__` has instead of Python's own."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse(f"{name!r} was asked of it")

    def _refuse(self, what: str) -> NoReturn:
        self._entered = True  # it has been told of
        raise UsageError(
            f"propose() has proposed nothing yet, and {what}; write: "
            "async with space.propose(…) as proposal"
        )

    def __del__(self) -> None:
        if not self._entered:
            warnings.warn_explicit(
                "propose() was never entered, so nothing was proposed; write: "
                "async with space.propose(…) as proposal",
                RuntimeWarning,
                *self._written,
            )


def _place() -> tuple[str, int]:
    """File and line outside of this package."""
    frame = inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] != _PACKAGE:
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return __file__, 0
