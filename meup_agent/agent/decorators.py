"""The decorators: they check a function, attach a record, and return the function unchanged."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, TypeVar, cast, overload

from meup_agent.agent.definitions import (
    ATTRIBUTE,
    HandlerDefinition,
    Injectables,
    Role,
    handler,
    kind_handler,
    proposal_handler,
    tool_handler,
)
from meup_agent.agent.source import Handler
from meup_agent.agent.tool import ToolHints, ToolOptions
from meup_agent.errors import HandlerDefinitionError

F = TypeVar("F", bound=Callable[..., Any])

Register = Callable[[HandlerDefinition], None]


class Decorators:
    """The decorators of one agent, or the free-standing ones of a module.

    Those of an agent register the function at once. Free-standing ones only leave their record on
    it, for ``agent.include(module)`` or, in a class, ``agent.include(instance)``.

    Args:
        injectables: Which types the handlers of each role may ask for.
        register: Called with each definition; ``None`` for free-standing decorators.
    """

    def __init__(self, injectables: Injectables, register: Register | None = None) -> None:
        self._injectables = injectables
        self._register = register

    @overload
    def tool(self, fn: F, /) -> F: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        read_only: bool | None = None,
        destructive: bool | None = None,
        idempotent: bool | None = None,
        open_world: bool | None = None,
    ) -> Callable[[F], F]: ...
    def tool(
        self,
        fn: F | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        read_only: bool | None = None,
        destructive: bool | None = None,
        idempotent: bool | None = None,
        open_world: bool | None = None,
    ) -> F | Callable[[F], F]:
        """Offer a function to others as an MCP tool.

        Parameters that are not injected are the tool's arguments, validated by pydantic; a return
        annotation that pydantic can describe gives its results structured content.

        Args:
            fn: The function, where the decorator is used without parentheses.
            name: The tool's name; the function's if not given.
            title: A name for people.
            description: What it does; the docstring's first paragraph if not given.
            read_only: Whether it changes nothing.
            destructive: Whether it may delete or overwrite.
            idempotent: Whether calling it twice does no more than calling it once.
            open_world: Whether it deals with things outside the agent's own reach.

        Raises:
            HandlerDefinitionError: The function cannot work as a tool.
        """
        hints = ToolHints(read_only, destructive, idempotent, open_world)
        options = ToolOptions(name, title, description, hints)
        return self._decorate(fn, lambda each: tool_handler(each, options, self._injectables))

    @overload
    def on_proposal(self, fn: F, /) -> F: ...
    @overload
    def on_proposal(
        self,
        /,
        *,
        method: str | Sequence[str] = "tools/call",
        name: str | Sequence[str] | None = None,
    ) -> Callable[[F], F]: ...
    def on_proposal(
        self,
        fn: F | None = None,
        /,
        *,
        method: str | Sequence[str] = "tools/call",
        name: str | Sequence[str] | None = None,
    ) -> F | Callable[[F], F]:
        """Decide proposals of others; of several handlers that match, the first one is asked.

        Args:
            fn: The function, where the decorator is used without parentheses.
            method: Pattern, or patterns, of the proposed MCP method (PROTOCOL 7).
            name: Pattern, or patterns, of the proposed tool's name; any if not given.

        Raises:
            HandlerDefinitionError: The function cannot work as a handler of proposals.
        """
        return self._decorate(
            fn, lambda each: proposal_handler(each, method, name, self._injectables)
        )

    def on(self, *kinds: str) -> Callable[[F], F]:
        """See every envelope of some kinds, also of kinds that this package does not know.

        Args:
            kinds: Patterns of kinds, with slashes or with dots: ``"acme/event"``, ``"system/*"``.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        if not kinds or not all(_is_text(kind) for kind in kinds):
            raise HandlerDefinitionError(
                f'on(…) takes patterns of kinds, not {kinds!r}; write @on("kind") on top of it'
            )
        return self._decorating(lambda each: kind_handler(each, kinds, self._injectables))

    @overload
    def on_reject(self, fn: F, /) -> F: ...
    @overload
    def on_reject(self, /) -> Callable[[F], F]: ...
    def on_reject(self, fn: F | None = None, /) -> F | Callable[[F], F]:
        """Learn that a participant rejected a proposal of ours.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        return self._plain(Role.REJECT, fn)

    @overload
    def on_withdraw(self, fn: F, /) -> F: ...
    @overload
    def on_withdraw(self, /) -> Callable[[F], F]: ...
    def on_withdraw(self, fn: F | None = None, /) -> F | Callable[[F], F]:
        """Learn that a proposal which we handled was withdrawn; its handler has ended by then.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        return self._plain(Role.WITHDRAW, fn)

    @overload
    def on_conflict(self, fn: F, /) -> F: ...
    @overload
    def on_conflict(self, /) -> Callable[[F], F]: ...
    def on_conflict(self, fn: F | None = None, /) -> F | Callable[[F], F]:
        """Learn that a result came for what we had given up or rejected.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        return self._plain(Role.CONFLICT, fn)

    @overload
    def on_chat(self, fn: F, /) -> F: ...
    @overload
    def on_chat(self, /) -> Callable[[F], F]: ...
    def on_chat(self, fn: F | None = None, /) -> F | Callable[[F], F]:
        """Read what others say.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        return self._plain(Role.CHAT, fn)

    @overload
    def on_join(self, fn: F, /) -> F: ...
    @overload
    def on_join(self, /) -> Callable[[F], F]: ...
    def on_join(self, fn: F | None = None, /) -> F | Callable[[F], F]:
        """Learn that a participant has come, also while our connection was away.

        Participants that were there before our first welcome stand in ``space.participants``.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        return self._plain(Role.JOIN, fn)

    @overload
    def on_leave(self, fn: F, /) -> F: ...
    @overload
    def on_leave(self, /) -> Callable[[F], F]: ...
    def on_leave(self, fn: F | None = None, /) -> F | Callable[[F], F]:
        """Learn that a participant has gone, also while our connection was away.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        return self._plain(Role.LEAVE, fn)

    @overload
    def on_gap(self, fn: F, /) -> F: ...
    @overload
    def on_gap(self, /) -> Callable[[F], F]: ...
    def on_gap(self, fn: F | None = None, /) -> F | Callable[[F], F]:
        """Learn that some of what was said while we were away will never reach us.

        On a gateway that resumes (``space.guarantees.resume``) an agent that comes back gets what
        it missed, in order. Where the gateway does not know all of that any more, this is the first
        handler that runs afterwards. It gets a :class:`~meup_agent.Gap`.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        return self._plain(Role.GAP, fn)

    @overload
    def on_grant(self, fn: F, /) -> F: ...
    @overload
    def on_grant(self, /) -> Callable[[F], F]: ...
    def on_grant(self, fn: F | None = None, /) -> F | Callable[[F], F]:
        """Learn that we were granted something; it is acknowledged by itself.

        What we may send now, ``space.may`` tells: the gateway has said so before.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        return self._plain(Role.GRANT, fn)

    @overload
    def on_revoke(self, fn: F, /) -> F: ...
    @overload
    def on_revoke(self, /) -> Callable[[F], F]: ...
    def on_revoke(self, fn: F | None = None, /) -> F | Callable[[F], F]:
        """Learn that something which we may send was revoked.

        What went with it, of others' grants that rested on it, is not told so: ``space.may`` is.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        return self._plain(Role.REVOKE, fn)

    def _plain(self, role: Role, fn: F | None) -> F | Callable[[F], F]:
        return self._decorate(fn, lambda each: handler(each, role, self._injectables))

    def _decorate(
        self, fn: F | None, define: Callable[[Handler], HandlerDefinition]
    ) -> F | Callable[[F], F]:
        decorate = self._decorating(define)
        return decorate if fn is None else decorate(fn)

    def _decorating(self, define: Callable[[Handler], HandlerDefinition]) -> Callable[[F], F]:
        def decorate(fn: F) -> F:
            self._define(fn, define(fn))
            return fn

        return decorate

    def _define(self, fn: Handler, definition: HandlerDefinition) -> None:
        if self._register is not None:
            self._register(definition)
        try:
            setattr(fn, ATTRIBUTE, (*definitions_of(fn), definition))
        except AttributeError as error:
            # A bound method, for one, carries nothing: fine where it is registered already.
            if self._register is None:
                raise definition.signature.source.error(
                    "nothing can be attached to it; use the decorator of an agent"
                ) from error


def definitions_of(fn: object) -> tuple[HandlerDefinition, ...]:
    """The definitions that a function carries; none if it carries none."""
    if isinstance(fn, MethodType):
        fn = fn.__func__
    # Looked up without running code: a module's values may be proxies that are not ready yet.
    carried: object = inspect.getattr_static(fn, ATTRIBUTE, ())
    return cast("tuple[HandlerDefinition, ...]", carried) if isinstance(carried, tuple) else ()


def _is_text(value: object) -> bool:
    # Without its parentheses, the decorator gets the function where a kind should be.
    return isinstance(value, str)
