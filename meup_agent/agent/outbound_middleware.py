"""Outbound middleware: the verbs of a space, each passed through the agent's middleware first.

Where an agent has outbound middleware, its blocks and its handlers get a :class:`MiddlewareSpace`
in place of the space; where it has none, nothing of this is in their way. A verb becomes an
:class:`OutboundMessage`, which the layers may refuse (by raising), change and time. What the
innermost passes on is carried out by the space itself, as if it had been asked so: a changed call
is checked, and becomes a request or a proposal, as the call that it now is.

A layer sends on the bare space: what it sends passes no middleware, or it would never end.
"""

from __future__ import annotations

import copy
import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from meup_agent.agent.middleware import InboundMessage, OutboundMessage, Verb, wrap
from meup_agent.client.explanations import send_explanation, with_explainer
from meup_agent.client.offer_lists import TOOLS
from meup_agent.client.proposal import Proposal
from meup_agent.client.proposal_handle import PendingProposal, resolve_ttl, set_explainer
from meup_agent.client.requests import TIMEOUT
from meup_agent.client.running_handler import awaited, handler_is
from meup_agent.client.space import Space
from meup_agent.client.streams import writing
from meup_agent.client.talk import names
from meup_agent.errors import UsageError
from meup_agent.protocol import kinds
from meup_agent.transport.loops import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import Self

    from anyio.abc import TaskStatus

    from meup_agent.agent.middleware import Layer
    from meup_agent.client.explanations import DecisionReceipt, Explainer
    from meup_agent.client.proposal import ProposalRecord
    from meup_agent.client.proposal_handle import ProposalHandle
    from meup_agent.client.streams import StreamWriter
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.outcomes import CallOutcome, Fulfillment
    from meup_agent.protocol.payloads import JsonObject
    from meup_agent.session import Session

log = logging.getLogger("meup_agent.agent")


async def pass_outbound(
    layers: Sequence[Layer],
    message: OutboundMessage,
    send: Callable[[OutboundMessage], Awaitable[Any]],
) -> Any:
    """Pass a message through the layers to what sends it."""

    async def innermost(given: InboundMessage | OutboundMessage) -> Any:
        if not (isinstance(given, OutboundMessage) and given.is_of(message)):
            raise UsageError(
                f"call_next got {given!r:.100}; pass on the message that came, or what its "
                "replace() gave"
            )
        return await send(given)

    return await wrap(layers, innermost)(message)


def explainer_within(session: Session, space: Space, layers: Sequence[Layer]) -> Explainer:
    """Sends explanations through the layers, as the chats that they are."""

    async def explain(decision: Envelope, text: str) -> str:
        async def send(given: OutboundMessage) -> str:
            return await send_explanation(session, given.payload, to=given.to, about=decision.id)

        message = OutboundMessage(
            verb="send",
            space=space,
            kind=kinds.CHAT,
            payload={"message": text},
            to=decision.to,
            correlation=(decision.id,),
        )
        return str(await pass_outbound(layers, message, send))

    return explain


class MiddlewareSpace(Space):
    """A space whose verbs pass the agent's outbound middleware on their way to the bare one."""

    def __init__(self, session: Session, bare: Space, layers: Sequence[Layer]) -> None:
        super().__init__(session)
        self._tools = bare._tools  # the lists that one has read, the other knows
        self._finder = bare._finder
        self._bare = bare
        self._layers = layers

    @awaited
    async def invoke(
        self,
        participant: str | None,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        to: str | Iterable[str] = (),
        **options: Any,
    ) -> CallOutcome:
        """See :meth:`Space.invoke`."""
        if participant is None:  # a middleware sees whom the call is for
            timeout = resolve_ttl(options.get("timeout", "space"), self.ttl)
            participant = await self._finder.owner(TOOLS, tool, timeout)

        async def send(given: OutboundMessage) -> Any:
            assert given.participant is not None
            return await self._bare.invoke(
                given.participant, given.tool, given.arguments, to=given.to, **options
            )

        message = self._message(
            "invoke",
            participant=participant,
            method="tools/call",
            tool=tool,
            arguments=arguments,
            to=to,
        )
        outcome: CallOutcome = await pass_outbound(self._layers, message, send)
        return outcome

    @awaited
    async def request(
        self, to: str | None, method: str, params: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        """See :meth:`Space.request`."""
        if to is None:
            to = await self._finder.route(method, params or {}, options.get("timeout", TIMEOUT))
        message = self._message("request", participant=to, method=method, arguments=params)

        async def send(given: OutboundMessage) -> Any:
            assert given.participant is not None
            return await self._bare.request(
                given.participant, given.method, given.arguments, **options
            )

        return await pass_outbound(self._layers, message, send)

    @awaited
    async def send(
        self,
        kind: str,
        payload: Any,
        *,
        to: str | Iterable[str] = (),
        correlation: str | Iterable[str] = (),
        context: str | None = None,
    ) -> str:
        """See :meth:`Space.send`."""
        message = self._message(
            "send",
            kind=kinds.canonical(kind),
            payload=payload,
            to=to,
            correlation=names(correlation),
        )

        async def send(given: OutboundMessage) -> str:
            return await self._bare.send(
                given.kind,
                given.payload,
                to=given.to,
                correlation=given.correlation,
                context=context,
            )

        return str(await pass_outbound(self._layers, message, send))

    @asynccontextmanager
    async def _stream(
        self,
        payload: JsonObject,
        about: tuple[str, ...],
        timeout: float | None,
        *,
        beside: bool = False,
    ) -> AsyncGenerator[StreamWriter]:
        message = self._message(
            "send", kind=kinds.STREAM_REQUEST, payload=payload, correlation=about
        )
        passed: list[OutboundMessage] = []

        async def send(given: OutboundMessage) -> str:
            passed.append(given)
            return ""

        await pass_outbound(self._layers, message, send)
        if not passed:
            raise UsageError(
                "a middleware returned without call_next, so no stream was requested; "
                "raise an exception to refuse a stream"
            )
        asked = passed[-1]
        async with writing(
            self._session, asked.payload, asked.correlation, timeout=timeout, beside=beside
        ) as out:
            yield out

    def propose(
        self,
        participant: str | None,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        to: str | Iterable[str] = (),
        **options: Any,
    ) -> AbstractAsyncContextManager[ProposalHandle]:
        """See :meth:`Space.propose`."""
        message = self._message(
            "propose",
            participant=participant,
            method="tools/call",
            tool=tool,
            arguments=arguments,
            to=to,
        )
        return PendingProposal(self._proposing(message, options))

    def proposal(
        self, of: ProposalRecord | Envelope | str, *, proposer: str | None = None
    ) -> Proposal:
        """See :meth:`Space.proposal`."""
        bare = self._bare.proposal(of, proposer=proposer)
        shown = _MiddlewareProposal(self._session, bare.envelope, self._finder)
        return shown.within(self._bare, bare, self._layers)

    def _explainer(self) -> Explainer:
        return explainer_within(self._session, self._bare, self._layers)

    # --- passing the layers ---

    def _message(
        self,
        verb: Verb,
        *,
        arguments: dict[str, Any] | None = None,
        payload: Any = None,
        to: str | Iterable[str] = (),
        **said: Any,
    ) -> OutboundMessage:
        return OutboundMessage(
            verb=verb,
            space=self._bare,
            to=names(to),
            # Copies: a layer that writes into them must not write into what its caller holds.
            arguments=copy.deepcopy(arguments or {}),
            payload=copy.deepcopy(payload),
            **said,
        )

    @asynccontextmanager
    async def _proposing(
        self, message: OutboundMessage, options: dict[str, Any]
    ) -> AsyncGenerator[ProposalHandle]:
        """Propose within the layers, which run beside the block and are told of its outcome.

        Beside it, since the block goes on while a layer waits in ``call_next``, and the outcome may
        come long before the block is left. In a group of the block's own, so that a layer ends
        with it.
        """
        passage = _Passage()
        async with background_tasks() as tasks:
            given: OutboundMessage = await tasks.start(
                passage.run, partial(pass_outbound, self._layers, message), name="meup middleware"
            )
            try:
                async with self._bare.propose(
                    given.participant, given.tool, given.arguments, to=given.to, **options
                ) as proposal:
                    explainer = explainer_within(self._session, self._bare, self._layers)
                    set_explainer(proposal, explainer)
                    passage.open(proposal)
                    yield proposal
            except Exception as error:
                passage.fail(error)
                # The outcome is known by now: the layers see it, and end. A cancellation, which is
                # not caught here, ends them as it ends the block.
                await passage.ended.wait()
                raise
            await passage.ended.wait()
            if passage.failure is not None:
                raise passage.failure


class _Passage:
    """The way of one proposal through the layers."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.failure: Exception | None = None
        self._opened = anyio.Event()
        self._proposal: ProposalHandle | None = None
        self._error: Exception | None = None
        self._begun = False

    def open(self, proposal: ProposalHandle) -> None:
        """Tell the layers that the proposal has been made."""
        self._proposal = proposal
        self._opened.set()

    def fail(self, error: Exception) -> None:
        """Note what the block raised; where it was not entered, the layers raise it, too."""
        if self._proposal is None:
            self._error = error
            self._opened.set()

    async def run(
        self, passing: Callable[[Any], Awaitable[Any]], *, task_status: TaskStatus[OutboundMessage]
    ) -> None:
        async def send(given: OutboundMessage) -> Any:
            if self._begun:
                raise UsageError("call_next makes a proposal once; it was called again")
            self._begun = True
            task_status.started(given)
            await self._opened.wait()
            if self._proposal is None:
                assert self._error is not None
                raise self._error
            try:
                # The layers wait beside the handler: it keeps its place, since it may be at work.
                with handler_is(None):
                    return await self._proposal.outcome()
            except Exception as error:
                self._error = error
                raise

        try:
            await passing(send)
            if not self._begun:
                raise UsageError(
                    "a middleware returned without call_next, so nothing was proposed; "
                    "raise an exception to refuse a proposal"
                )
        except Exception as error:
            if not self._begun:
                raise
            if error is not self._error:  # which the block raises where it is asked for
                log.error("a middleware failed after the proposal was made", exc_info=error)
                self.failure = error
        finally:
            self.ended.set()


class _MiddlewareProposal(Proposal):
    """A proposal whose decisions pass the agent's middleware."""

    def within(self, space: Space, bare: Proposal, layers: Sequence[Layer]) -> Self:
        """Set the bare space and proposal behind it, and the layers before them."""
        self._space, self._bare, self._layers = space, bare, layers
        return self

    @awaited
    async def fulfill(
        self,
        arguments: dict[str, Any] | None = None,
        *,
        executor: str | None = None,
        **options: Any,
    ) -> Fulfillment:
        """See :meth:`Proposal.fulfill`."""
        proposed = self._bare.arguments
        message = OutboundMessage(
            verb="fulfill",
            space=self._space,
            participant=executor or self.target,
            method=self.method,
            tool=self.tool,
            arguments=copy.deepcopy(proposed if arguments is None else arguments),
            proposal=self._bare,
        )

        async def send(given: OutboundMessage) -> Fulfillment:
            # As proposed is None, so that nothing is told as an edit that is none.
            same = arguments is None and given.arguments == proposed
            return await self._bare.fulfill(
                None if same else given.arguments, executor=given.participant, **options
            )

        result: Fulfillment = await pass_outbound(self._layers, message, send)
        return result

    @awaited
    async def reject(
        self, reason: str, *, explain: str | None = None, rule: dict[str, Any] | None = None
    ) -> DecisionReceipt:
        """See :meth:`Proposal.reject`."""
        message = OutboundMessage(
            verb="reject",
            space=self._space,
            reason=str(reason),
            explain=explain,
            method=self.method,
            tool=self.tool,
            proposal=self._bare,
        )

        receipts: list[DecisionReceipt] = []

        async def send(given: OutboundMessage) -> DecisionReceipt:
            receipt = await self._bare.reject(given.reason, explain=given.explain, rule=rule)
            receipts.append(receipt)
            return receipt

        await pass_outbound(self._layers, message, send)
        if not receipts:
            raise UsageError(
                "a middleware returned without call_next, so nothing was rejected; "
                "raise an exception to refuse a rejection"
            )
        explainer = explainer_within(self._session, self._space, self._layers)
        return with_explainer(receipts[-1], explainer)
