"""Verbs that control participants: pause, resume, status, restart, shutdown (PROTOCOL 3, 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meup_agent.client.management import AwaitedAnswer, ask, given
from meup_agent.client.running_handler import awaited
from meup_agent.client.waits import TIMEOUT
from meup_agent.protocol.wire import control_payloads
from meup_agent.protocol.wire.control_payloads import (
    CompactDone,
    Direction,
    ParticipantStatus,
    Pause,
    read_control,
)
from meup_agent.session.pending_calls import checked_timeout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meup_agent.session import Session


class Control:
    """Control of other participants, as ``space.control``; each verb takes a capability."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def paused(self) -> Pause | None:
        """The pause that we keep at this moment; ``None``: we are not paused."""
        return self._session.table.pause

    @awaited
    async def pause(
        self, participant: str, *, reason: str = "", timeout: float | None = None
    ) -> Pause:
        """Pause a participant: it begins nothing new until it is resumed; what runs goes on.

        Our own gateway holds it to that. It returns when the gateway has taken it.

        Args:
            participant: The participant.
            reason: Why, for it and for those who read it.
            timeout: Seconds after which it resumes by itself; ``None``: it waits for
                :meth:`resume`.

        Returns:
            The pause, by which it can be resumed.

        Raises:
            Refused: We may not pause it, or there is no such participant.
            OutcomeUnknown: The gateway did not say in time what became of it.
            NotSent: There is no connection any more, and there will be none.
        """
        payload = given(reason=reason, timeout_seconds=checked_timeout(timeout))
        said = await ask(self._session, control_payloads.PAUSE, payload, to=participant)
        return Pause(said.id, self._session.me, reason, timeout)

    @awaited
    async def resume(
        self, participant: str, *, pause: Pause | str | None = None, reason: str = ""
    ) -> None:
        """Let a paused participant go on.

        Args:
            participant: The participant.
            pause: The pause that ends, or its id; where another one holds by now, that goes on.
                ``None``: whichever holds.
            reason: Why, for it and for those who read it.

        Raises:
            Refused: We may not resume it, or it is ourselves that another participant paused.
            OutcomeUnknown: As :meth:`pause`.
            NotSent: As :meth:`pause`.
        """
        meant = pause.id if isinstance(pause, Pause) else pause
        await ask(
            self._session,
            control_payloads.RESUME,
            given(reason=reason),
            to=participant,
            correlation=() if meant is None else (meant,),
        )

    @awaited
    async def request_status(
        self, participant: str, fields: Iterable[str] = (), *, timeout: float | None = TIMEOUT
    ) -> ParticipantStatus:
        """Ask a participant for its status, and wait for the answer.

        Args:
            participant: The participant.
            fields: Fields that are wanted, for example ``tokens``; empty: all.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            Refused: We may not ask.
            OutcomeUnknown: No answer came in time.
            NotSent: As :meth:`pause`.
        """
        said = await ask(
            self._session,
            control_payloads.REQUEST_STATUS,
            given(fields=list(fields)),
            to=participant,
            answer=AwaitedAnswer(control_payloads.STATUS, participant),
            timeout=timeout,
        )
        status = read_control(said, said.payload_object)
        assert isinstance(status, ParticipantStatus)
        return status

    @awaited
    async def report_status(
        self, status: str = "active", fields: Mapping[str, Any] | None = None, *, to: str = ""
    ) -> None:
        """Tell our status unasked, for example before a limit is reached.

        Args:
            status: It in a word.
            fields: More of it: ``tokens``, ``max_tokens``, ``messages_in_context`` …
            to: The participant that is told; empty: every member.

        Raises:
            Refused: We may not.
            OutcomeUnknown: As :meth:`pause`.
            NotSent: As :meth:`pause`.
        """
        payload = {"messages_in_context": 0, **(fields or {}), "status": status}
        await ask(self._session, control_payloads.STATUS, payload, to=to)

    @awaited
    async def forget(
        self,
        participant: str,
        *,
        direction: Direction = "oldest",
        entries: int | None = None,
        reason: str = "",
    ) -> None:
        """Have a participant drop a part of its context; it tells its status afterwards.

        Args:
            participant: The participant.
            direction: ``oldest`` or ``newest`` first.
            entries: Entries to drop; ``None``: it decides.
            reason: Why, for it and for those who read it.

        Raises:
            Refused: We may not.
            OutcomeUnknown: As :meth:`pause`.
            NotSent: As :meth:`pause`.
        """
        payload = given(direction=direction, entries=entries, reason=reason)
        await ask(self._session, control_payloads.FORGET, payload, to=participant)

    @awaited
    async def compact(
        self,
        participant: str,
        *,
        target_tokens: int | None = None,
        reason: str = "",
        timeout: float | None = TIMEOUT,
    ) -> CompactDone:
        """Have a participant shorten its context, and wait until it has.

        Args:
            participant: The participant.
            target_tokens: Tokens that may remain; ``None``: it decides.
            reason: Why, for it and for those who read it.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            Refused: We may not.
            OutcomeUnknown: No answer came in time.
            NotSent: As :meth:`pause`.
        """
        said = await ask(
            self._session,
            control_payloads.COMPACT,
            given(target_tokens=target_tokens, reason=reason),
            to=participant,
            answer=AwaitedAnswer(control_payloads.COMPACT_DONE, participant),
            timeout=timeout,
        )
        done = read_control(said, said.payload_object)
        assert isinstance(done, CompactDone)
        return done

    @awaited
    async def clear(self, participant: str, *, reason: str = "") -> None:
        """Have a participant drop all of its context; errors as of :meth:`pause`."""
        payload = given(reason=reason)
        await ask(self._session, control_payloads.CLEAR, payload, to=participant)

    @awaited
    async def restart(self, participant: str, *, reason: str = "") -> None:
        """Have a participant begin anew: what it runs ends; errors as of :meth:`pause`."""
        payload = given(reason=reason)
        await ask(self._session, control_payloads.RESTART, payload, to=participant)

    @awaited
    async def shutdown(self, participant: str, *, reason: str = "") -> None:
        """Have a participant finish what it runs, and leave; errors as of :meth:`pause`.

        Until it joins anew, our own gateway refuses what it would begin.
        """
        payload = given(reason=reason)
        await ask(self._session, control_payloads.SHUTDOWN, payload, to=participant)
