"""A space as a participant sees it, with everything that can be done there."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint
from msgspec import to_builtins

from meup_agent.client.control import Control, Members, ask
from meup_agent.client.messages import (
    TIMEOUT,
    OnProgress,
    Outbound,
    Talk,
    await_announced,
    awaited,
    explainer_of,
    names,
    outbound,
    proposing,
    request,
    shown,
    wait_for,
)
from meup_agent.client.offers import TOOLS, OfferDirectory, OfferFinder, Offers
from meup_agent.client.proposal import (
    Proposal,
    ProposalHandle,
    Proposals,
    ProposeContext,
    Ttl,
    propose,
    resolve_ttl,
)
from meup_agent.client.streams import OnStream, Streams, reading_of_call
from meup_agent.errors import ParticipantGone, UsageError
from meup_agent.protocol.exchange import Participant, Wait
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.outcomes import (
    CallOutcome,
    Outcome,
    PermitReport,
    ReportedOutcome,
    result_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from datetime import datetime

    from meup_agent.protocol.wire.membership import Guarantees
    from meup_agent.protocol.wire.payloads import JsonObject
    from meup_agent.session import Session
    from meup_agent.session.session import EnvelopeStream


class GatewayFacts:
    """The gateway's dialect, guarantees and clock, as ``space.gateway``."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def dialect(self) -> str:
        """The dialect that the gateway speaks, for example ``meup/v0.2``."""
        return self._session.dialect

    @property
    def guarantees(self) -> Guarantees:
        """The gateway's guarantees, by its latest first welcome."""
        return self._session.table.roster.guarantees

    @property
    def now(self) -> datetime:
        """The gateway's time, by which deadlines count; our own, where it does not tell it."""
        return self._session.time_of_day()


class Space:
    """A participant's presence in a space; :meth:`meup_agent.Agent.join` gives one.

    Attributes:
        members: Grants, revocations, invitations, removals.
        control: Pause, resume, status, restart and shutdown of other participants.
        streams: The streams that are open; opens, reads and writes them.
        offers: Tools, resources and prompts of participants.
        proposals: The proposals that were seen; lists, decides and withdraws them.
        talk: Lines of thought; acknowledges and takes back chats.
        gateway: Its dialect, guarantees and clock.
    """

    def __init__(
        self,
        session: Session,
        *,
        finder: OfferFinder | None = None,
        outbound: Outbound | None = None,
    ) -> None:
        self._session = session
        self._finder = finder or OfferFinder(session)
        self._directory = self._finder.lists
        self._outbound = outbound
        self.members = Members(session)
        self.control = Control(session)
        self.streams = Streams(session, outbound)
        self.offers = Offers(self._finder, self.request)
        self.proposals = Proposals(session, self._finder, outbound)
        self.talk = Talk(session, self.send)
        self.gateway = GatewayFacts(session)

    @property
    def me(self) -> str:
        """Our own name: the gateway knows it by our token."""
        return self._session.me

    @property
    def connected(self) -> bool:
        """True if there is a connection at this moment."""
        return self._session.table.connected

    @property
    def observing(self) -> bool:
        """True if this participant observes, and is not present (PROTOCOL 3)."""
        return self._session.table.roster.observing

    @property
    def participants(self) -> tuple[Participant, ...]:
        """The participants present, with their capabilities; we too, unless we observe."""
        return self._session.table.roster.participants()

    @property
    def capabilities(self) -> tuple[Any, ...]:
        """Our capabilities, as the gateway announced them; not to be changed."""
        return self._session.table.roster.my_capabilities

    def may(self, kind: str, payload: Any, *, to: Sequence[str] = ()) -> bool:
        """True if our announced capabilities allow an envelope; some allow it to some alone."""
        roster = self._session.table.roster
        return roster.is_allowed(roster.me, kind, payload, to)

    def may_request(self, to: str | None, method: str, params: JsonObject) -> bool:
        """True if our announced capabilities allow an MCP request; ``to=None``: to every one."""
        payload = payloads.request(method, params, "")
        return self.may(kinds.MCP_REQUEST, payload, to=() if to is None else (to,))

    @awaited
    async def present(self, participant: str, *, timeout: float | None = TIMEOUT) -> Participant:
        """Wait until a participant is in the space; at once if it is.

        Args:
            participant: The participant to wait for.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Returns:
            The participant, with its capabilities.

        Raises:
            ParticipantGone: It did not come in time.
        """
        roster = self._session.table.roster

        def find() -> Participant | None:
            if participant not in roster:  # looked for at each envelope, so the list is built once
                return None
            return next(each for each in roster.participants() if each.id == participant)

        found = await wait_for(self._session, find, timeout)
        if found is None:
            why = self._session.over or f"waited for {timeout:g} s"
            raise ParticipantGone(f"{participant!r} did not come into the space: {why}")
        return found

    # --- requests ---

    async def _complete_request(self, given: dict[str, Any]) -> None:
        """Find the addressee of a request that names none."""
        if given["to"] is None:
            params = payloads.as_object(given["params"])
            given["to"] = await self._finder.route(given["method"], params, given["timeout"])

    @awaited
    @outbound(
        "request", complete=_complete_request, participant="to", method="method", arguments="params"
    )
    async def request(
        self,
        to: str | None,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        timeout: float | None = TIMEOUT,
        total_timeout: float | None = None,
        idempotent: bool = False,
        on_progress: OnProgress | None = None,
        on_begun: Callable[[str], None] | None = None,
    ) -> Any:
        """Send an MCP request to a participant and wait for its result.

        Giving up, by a timeout or because the caller is cancelled, cancels the request.

        Args:
            to: The addressee; ``None``: the one participant that has the tool, prompt or resource
                that the parameters name (``space.offers.find``).
            method: The MCP method, for example ``tools/list``.
            params: Its parameters.
            timeout: Seconds to wait; ``None``: as long as it takes.
            total_timeout: Seconds to wait in all: each progress (``on_progress``) lets the
                ``timeout`` begin anew. ``None``: ten times the timeout; as much as the timeout:
                progress changes nothing.
            idempotent: It may be sent again after a reconnect, under the same id.
            on_progress: Called with each progress; must return at once.
            on_begun: Called with the id of its envelope, before it is sent; must return at once.

        Returns:
            The result as JSON values.

        Raises:
            RequestError: It was answered with an error.
            RequestTimeout: No response came in time; it was cancelled.
            Refused: The gateway did not let it through, or no participant has that name.
            ParticipantGone: The addressee left, and did not come back.
            OwnerUnknown: It is for no single participant; nothing was sent.
            ConnectionFailed: It was not sent, or its outcome is not known.
        """
        if to is None:
            to = await self._finder.route(method, params or {}, timeout)
        response = await request(
            self._session,
            to,
            method,
            params or {},
            timeout=timeout,
            total_timeout=total_timeout,
            idempotent=idempotent,
            on_progress=on_progress,
            on_begun=on_begun,
        )
        return result_of(response)

    @awaited
    async def call(
        self,
        participant: str | None,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        to: str | Iterable[str] = (),
        timeout: Ttl = "space",
        total_timeout: float | None = None,
        idempotent: bool = False,
        accept_edits: bool = False,
        on_progress: OnProgress | None = None,
        on_stream: OnStream | None = None,
    ) -> Any:
        """Call a participant's tool: a request if our capabilities allow it, otherwise a proposal.

        Where the participant's list of tools is known (``space.offers.tools``), the call is checked
        by it first.

        Args:
            participant: The participant that has the tool; ``None``: the one that has it, found by
                the tool's name and the same from then on (``space.offers.find``).
            tool: Its name.
            arguments: Its arguments.
            to: If it becomes a proposal: the participants that should decide it; empty: any that
                may.
            timeout: Seconds to wait, for a request as for a proposal; ``None``: as long as it
                takes. By default the space's ``ttl`` (:class:`Settings`).
            total_timeout: Seconds to wait in all if it becomes a request: each progress
                (``on_progress``) lets the ``timeout`` begin anew. ``None``: ten times the timeout;
                as much as the timeout: progress does not extend it. Of a proposal the timeout is
                the whole wait, since those who decide it are told its end.
            idempotent: A request may be sent again after a reconnect, under the same id.
            accept_edits: If it becomes a proposal: take the result also of what was carried out
                otherwise than proposed, or perhaps so.
            on_progress: Called with each progress; must return at once.
            on_stream: An async function that reads each stream which the tool opens about the call
                (:meth:`Context.stream`), in a task beside it; no handler of ours gets these. The
                call returns when it has read all that came before the answer. What it raises
                cancels the call.

        Returns:
            The tool's structured content, else its content.

        Raises:
            InvalidArguments: There is no such tool, or it does not take these; nothing was sent.
            OwnerUnknown: No single participant has a tool of that name, or no longer the one that
                had it; nothing was sent.
            ToolError: The tool ran and failed.
            RequestError: It was answered with an error, for example for wrong arguments.
            ProposalEdited: The proposal was carried out otherwise than proposed, or it is unknown
                whether it was.
            ProposalRejected: The proposal was rejected.
            ProposalExpired: It was not decided, or not done, in time.
            RequestTimeout: No response came in time; it was cancelled.
            Refused: The gateway let through neither, or no participant has that name.
            ParticipantGone: Every participant that could answer has left.
            ConnectionFailed: It was not sent, or its outcome is not known.
        """
        outcome = await self.invoke(
            participant,
            tool,
            arguments,
            to=to,
            timeout=timeout,
            ttl=timeout,
            total_timeout=total_timeout,
            idempotent=idempotent,
            on_progress=on_progress,
            on_stream=on_stream,
        )
        outcome = await await_announced(self._session, outcome)
        return outcome.result(accept_edits=accept_edits)

    async def _complete_call(self, given: dict[str, Any]) -> None:
        """Find the participant of a call that names none."""
        if given["participant"] is None:
            timeout = resolve_ttl(given["timeout"], self._session.ttl)
            given["participant"] = await self._finder.owner(TOOLS, given["tool"], timeout)

    @awaited
    @outbound(
        "invoke",
        about=lambda _: {"method": payloads.TOOL_CALL},
        complete=_complete_call,
        participant="participant",
        tool="tool",
        arguments="arguments",
        to="to",
    )
    async def invoke(
        self,
        participant: str | None,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        to: str | Iterable[str] = (),
        timeout: Ttl = "space",
        ttl: Ttl = "space",
        total_timeout: float | None = None,
        wait: Wait | str = Wait.ADDRESSED,
        as_proposal: bool = False,
        idempotent: bool = False,
        more: JsonObject | None = None,
        proposal_meta: JsonObject | None = None,
        on_progress: OnProgress | None = None,
        on_stream: OnStream | None = None,
        on_begun: Callable[[str], None] | None = None,
        on_proposed: Callable[[ProposalHandle], None] | None = None,
    ) -> CallOutcome:
        """Call a tool as :meth:`call` does, and return its outcome, whatever that is.

        ``call(…)`` is ``(await invoke(…)).result()``. A caller that shows what became of a call
        matches the outcome instead of catching an exception for each.

        Args:
            participant: As of :meth:`call`; so are ``tool``, ``arguments``, ``to``,
                ``total_timeout``, ``idempotent``, ``on_progress`` and ``on_stream``.
            tool: Its name.
            arguments: Its arguments.
            to: If it becomes a proposal: the participants that should decide it.
            timeout: Seconds that a request waits; ``None``: as long as it takes.
            ttl: Seconds that a proposal waits for a decision and its result; ``None``: as long as
                it takes. By default both are the space's.
            total_timeout: Seconds that a request waits in all.
            wait: The rejection that ends the wait for a proposal, as of :meth:`propose`.
            as_proposal: Propose it also where our capabilities allow the request.
            idempotent: A request may be sent again after a reconnect, under the same id.
            more: Further parameters of a request, for example ``_meta``. A proposal has none.
            proposal_meta: Members of a proposal's ``_meta``, which no fulfillment repeats.
            on_progress: Called with each progress; must return at once.
            on_stream: Reads each stream that the tool opens about the call.
            on_begun: Called with the id of the request or proposal; must return at once.
            on_proposed: Called with the handle of a proposal that was made; must return at once.

        Returns:
            :class:`Responded` to a request. Of a proposal :class:`Fulfillment`,
            :class:`Rejection`, :class:`Withdrawal`, :class:`Expiry` or :class:`Gone`. Each has
            ``result()``, which returns or raises what :meth:`call` does.

        Raises:
            InvalidArguments: There is no such tool, or it does not take these; nothing was sent.
            OwnerUnknown: No single participant has a tool of that name; nothing was sent.
            RequestTimeout: No response to a request came in time; it was cancelled.
            ParticipantGone: The addressee of a request left, and did not come back.
            Refused: The gateway did not let it through, or no participant has that name.
            ConnectionFailed: It was not sent, or its outcome is not known.
        """
        session, given = self._session, arguments or {}
        _check_tool(tool)
        timeout, ttl = resolve_ttl(timeout, session.ttl), resolve_ttl(ttl, session.ttl)
        if participant is None:
            participant = await self._finder.owner(TOOLS, tool, timeout)
        params = {**(more or {}), "name": tool, "arguments": given}
        own = {} if not proposal_meta else {payloads.META: proposal_meta}
        # It is judged once, before anything is awaited that could hide a change of capabilities.
        may_request = not as_proposal and self.may_request(participant, payloads.TOOL_CALL, params)
        check = partial(
            self._directory.check, participant, tool, given, timeout if may_request else ttl
        )

        async def requested(begun: Callable[[str], None] | None) -> CallOutcome:
            await check()
            return await request(
                session,
                participant,
                payloads.TOOL_CALL,
                params,
                timeout=timeout,
                total_timeout=total_timeout,
                idempotent=idempotent,
                on_progress=on_progress,
                on_begun=begun,
            )

        async def proposed(begun: Callable[[str], None] | None) -> CallOutcome:
            async with propose(
                session,
                payloads.TOOL_CALL,
                {**own, "name": tool, "arguments": given},
                target=participant,
                to=names(to),
                ttl=ttl,
                wait=Wait(wait),
                on_progress=on_progress,
                explainer=explainer_of(self._session, self._outbound),
                check=check,
            ) as proposal:
                if begun is not None:
                    begun(proposal.id)
                if on_proposed is not None:
                    on_proposed(proposal)
                return await proposal.outcome()

        return await reading_of_call(
            session, on_stream, requested if may_request else proposed, on_begun
        )

    # --- proposals ---

    def propose(
        self,
        participant: str | None,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        to: str | Iterable[str] = (),
        ttl: Ttl = "space",
        wait: Wait | str = Wait.ADDRESSED,
        depends_on: Iterable[ProposalHandle | str] = (),
        outlives: bool = False,
        proposal_meta: JsonObject | None = None,
        on_progress: OnProgress | None = None,
    ) -> AbstractAsyncContextManager[ProposalHandle]:
        """Propose a call of a tool; leaving the block undecided withdraws it.

        Args:
            participant: The participant that should carry it out; ``None``: the fulfiller's choice.
            tool: The tool's name.
            arguments: Its arguments.
            to: The participants that should decide it; empty: any that may.
            ttl: Seconds to wait for a decision and its result; ``None``: as long as it takes. By
                default the space's (:class:`Settings`). The handle can :meth:`renew
                <ProposalHandle.renew>` it.
            wait: The rejection that ends the wait: ``addressed``, ``first``, ``later``, ``all`` or
                ``deadline`` (PROTOCOL 4.5).
            depends_on: Proposals of ours, or their ids, that must be fulfilled first (PROTOCOL
                4.15). Until then no participant hears of this one, and its ``ttl`` has not begun;
                if one of them ends otherwise, or fails, this one is withdrawn.
            outlives: It says that it is wanted also when this program is gone, and
                :meth:`keep <ProposalHandle.keep>` leaves it open then.
            proposal_meta: Members of its ``_meta``, which no fulfillment repeats.
            on_progress: Called with each progress; must return at once.

        Returns:
            An async context manager that gives a :class:`ProposalHandle`; entering it proposes.

        Raises:
            InvalidArguments: The participant's list of tools is known (``space.offers.tools``), and
                there is no such tool, or it does not take these arguments; nothing was sent.
            UsageError: It was awaited, or asked for something, instead of entered; or it depends on
                what is not a proposal of ours, on itself, or on more than 64.
        """
        _check_tool(tool)
        seconds = resolve_ttl(ttl, self._session.ttl)
        meta = {**(proposal_meta or {}), **({payloads.OUTLIVES: True} if outlives else {})}
        marks = {payloads.META: meta} if meta else {}

        def begin(call: Any) -> AbstractAsyncContextManager[ProposalHandle]:
            target, check = call.participant, self._directory.check
            return propose(
                self._session,
                payloads.TOOL_CALL,
                {**marks, "name": call.tool, "arguments": call.arguments},
                target=target,
                to=names(call.to),
                ttl=seconds,
                wait=Wait(wait),
                on_progress=on_progress,
                explainer=explainer_of(self._session, self._outbound),
                depends_on=depends_on,
                check=None
                if target is None
                else partial(check, target, call.tool, call.arguments, seconds),
            )

        fields = {"participant": participant, "tool": tool, "to": names(to)}
        if self._outbound is None:
            return ProposeContext(begin(SimpleNamespace(**fields, arguments=arguments or {})))
        fields = shown(**fields, method=payloads.TOOL_CALL, arguments=arguments)
        return ProposeContext(proposing(self._outbound, fields, begin))

    # --- talk ---

    @awaited
    async def chat(
        self, text: str, *, to: str | Iterable[str] = (), about: str | None = None
    ) -> str:
        """Send a chat message to participants; the id of its envelope.

        Args:
            text: Its text.
            to: The addressees; empty: every member.
            about: The id of the envelope that it refers to.

        Raises:
            Refused: We are paused.
            NotSent: There is no connection any more, and there will be none.
            UsageError: It is larger than a gateway takes, or this space is only observed.
        """
        return await self.send(kinds.CHAT, {"message": text}, to=to, correlation=about or ())

    @awaited
    @outbound("send", kind="kind", payload="payload", to="to", correlation="correlation")
    async def send(
        self,
        kind: str,
        payload: Any,
        *,
        to: str | Iterable[str] = (),
        correlation: str | Iterable[str] = (),
        context: str | None = None,
    ) -> str:
        """Send an envelope of any kind that begins no exchange of ours; its id.

        Args:
            kind: The kind, with slashes or dots.
            payload: JSON values.
            to: The addressees; empty: every member.
            correlation: Ids of the envelopes that it refers to.
            context: The id of the context that it belongs to, as of a line of thought.
        """
        sent = self._session.send_message(
            kinds.canonical(kind),
            payload,
            to=names(to),
            correlation=names(correlation),
            context=context,
        )
        await checkpoint()
        return sent.id

    def watch(
        self, wanted: Callable[[Envelope], bool] | None = None
    ) -> AbstractContextManager[EnvelopeStream]:
        """Every envelope from here on, for the length of a block.

        The block gets an async iterator of :class:`~meup_agent.Envelope`, echoes of our own
        included. A watcher that is slower than the space misses the oldest, and ``missed``
        counts them.

        Args:
            wanted: Says which envelopes the watcher is woken for; returns at once. ``None``: all.
        """
        return self._session.watchers.watch(wanted)


def _check_tool(tool: object) -> None:
    """Raise UsageError for what is no name: most often the participant was left out."""
    if not isinstance(tool, str):
        raise UsageError(
            f"{tool!r:.80} is not the name of a tool; name the participant first, or None for"
            " whichever has the tool: call(None, 'read', {…})"
        )


def allowed_words(proposal: Proposal, space: Space, text: str | None) -> str | None:
    """The words, if a chat of them is allowed: a program's rejection is sent without them, too."""
    to = (proposal.proposer,)
    allowed = not space.capabilities or space.may(kinds.CHAT, {"message": text}, to=to)
    return text if allowed else None


def directory_of(space: Space) -> OfferDirectory:
    """The lists that a space keeps: for views over them, and no verb of a user's."""
    return space._directory  # pyright: ignore[reportPrivateUsage]


async def propose_request(
    space: Space,
    participant: str,
    method: str,
    params: JsonObject,
    *,
    to: Iterable[str] = (),
    ttl: Ttl = "space",
    wait: Wait = Wait.ADDRESSED,
) -> Outcome:
    """Propose a request other than the call of a tool, and wait for its outcome.

    For doors through which others ask: an agent's own middleware sees calls of tools alone.
    """
    session = space._session  # pyright: ignore[reportPrivateUsage]
    async with propose(
        session,
        method,
        params,
        target=participant,
        to=names(to),
        ttl=resolve_ttl(ttl, session.ttl),
        wait=wait,
        on_progress=None,
        explainer=explainer_of(session, None),
    ) as proposal:
        return await proposal.outcome()


def send_report(space: Space, proposal: str, report: PermitReport) -> None:
    """Tell at once what came of a proposal of ours that was permitted (PROTOCOL 4.20).

    For doors: of users nothing is permitted, since they carry out what others propose.
    """
    session = space._session  # pyright: ignore[reportPrivateUsage]
    session.send_message(kinds.MCP_REPORT, to_builtins(report), correlation=(proposal,))


async def take_permit(space: Space, proposal: str) -> None:
    """Tell that the program that asked has come back for its permit, which is told once.

    Returns only once the gateway has taken it, so that of several that tell it one goes on.

    Raises:
        MeupError: The gateway did not let it through: it was told before, say.
    """
    session = space._session  # pyright: ignore[reportPrivateUsage]
    payload = to_builtins(PermitReport(ReportedOutcome.TAKEN))
    # After a lost connection it is said again, and its echo, or a refusal, comes then.
    await ask(session, kinds.MCP_REPORT, payload, correlation=(proposal,), timeout=None)


def send_note(
    space: Space, payload: JsonObject, *, to: tuple[str, ...], about: str | None = None
) -> None:
    """Send a notification at once, about a request: a worker thread that tells it does not await.

    For handlers' contexts and bridges: of users it would hide that nothing else gets to run.
    """
    session = space._session  # pyright: ignore[reportPrivateUsage]
    session.send_message(
        kinds.MCP_REQUEST, payload, to=to, correlation=() if about is None else (about,)
    )
