"""``meup call`` and ``propose``: call a participant's tool, or propose the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn

import typer
from msgspec import structs

from meup_agent.cli import exit_codes
from meup_agent.cli.address import ActingOptions
from meup_agent.cli.arguments import (
    GivenArguments,
    convert_arguments,
    did_you_mean,
    read_arguments,
    read_input_schema,
    unknown_arguments,
)
from meup_agent.cli.failures import Failure, Misuse, code_for
from meup_agent.cli.options import (
    Args,
    ArgsFile,
    OptionGroup,
    To,
    argument,
    flag,
    seconds,
    ttl_option,
)
from meup_agent.cli.render.formatting import name_some
from meup_agent.cli.render.output import ProgressLine, progress_line
from meup_agent.cli.session import CommandSession
from meup_agent.client.proposal import ProposalHandle, Ttl, resolve_ttl
from meup_agent.client.schema_check import ArgumentChecker
from meup_agent.errors import (
    ParticipantGone,
    ProposalRejected,
    Refused,
    RequestError,
    RequestTimeout,
    ToolError,
)
from meup_agent.escape import arguments as in_words
from meup_agent.escape import visible
from meup_agent.protocol.capability import compile_announced
from meup_agent.protocol.exchange import Wait
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.outcomes import (
    CallOutcome,
    Fulfillment,
    MissingCaller,
    Outcome,
    Rejection,
    Responded,
    find_missing,
    raise_for,
    value_of,
)
from meup_agent.transport.base import background_tasks
from meup_agent.wording import MAX_NAME, describe_changes, shown_name, shown_names

if TYPE_CHECKING:
    from meup_agent.client.messages import Progress
    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.envelope import Envelope

LIST_SECONDS: Final = 5.0  # wait for a participant's list of tools; then the call goes unchecked

EXPLANATION_SECONDS: Final = 0.5
"""Wait for an explanation behind its rejection; none is owed (PROTOCOL 4.3)."""

MAX_SENTENCE: Final = 1_000
MAX_NAMED: Final = 12
MAX_DECIDERS: Final = 4  # that are named while they may decide


class CallOptions(OptionGroup, frozen=True):
    """The options that name a call, and what is done with a proposal of it."""

    owner: Annotated[str, argument("PARTICIPANT", "The participant that has the tool.")]
    tool: Annotated[str, argument("TOOL", "The tool's name.")]
    words: Annotated[
        list[str] | None,
        argument(
            "KEY=VALUE",
            "The tool's arguments. A value that is JSON is taken as JSON, unless the tool wants"
            " text there. `-` reads a JSON object from standard input.",
        ),
    ] = None
    args: Args = None
    args_file: ArgsFile = None
    to: To = None
    accept_edits: Annotated[
        bool,
        flag(
            "--accept-edits",
            "A call that was carried out otherwise than proposed is a success too; the difference"
            " is told.",
        ),
    ] = False


def call(
    *,
    options: CallOptions,
    idempotent: Annotated[
        bool,
        flag("--idempotent", "A request may be sent again after a lost connection."),
    ] = False,
    where: ActingOptions,
    timeout: Annotated[float | None, ttl_option()] = None,
) -> None:
    """Call a tool and print its result.

    Where you may not call it, the call is proposed, and a participant that may call it decides.
    Ctrl-C cancels the request or withdraws the proposal.

    It joins beside the agent that runs with the same token, which keeps its connection. On a
    gateway of other make it takes that over, unless `--as` says that it must not.

    Example: `MEUP_TOKEN=… meup call tools write_file path=notes.txt text="hello"`
    """
    wanted = _ToolCall(options, _given(options), _ttl(timeout, "--timeout"), idempotent)
    CommandSession(where).run(wanted.run)


def propose(
    *,
    call: CallOptions,
    wait: Annotated[
        Wait,
        typer.Option(
            help="Which rejection ends the wait: one by a participant of --to (without --to, those"
            " of all that could fulfill it), the first of any, those of all, or none before the"
            " time is up."
        ),
    ] = Wait.ADDRESSED,
    ttl: Annotated[float | None, ttl_option("--ttl", "--timeout")] = None,
    where: ActingOptions,
) -> None:
    """Propose the call of a tool, wait, and print its result.

    Its id is on standard error at once; what becomes of it shows in the exit code. Ctrl-C
    withdraws it.

    It joins beside the agent that runs with the same token, which keeps its connection. On a
    gateway of other make it takes that over, unless `--as` says that it must not.

    Example: `MEUP_TOKEN=… meup propose tools delete_file path=notes.txt --to fulfiller --ttl 60`
    """
    limit = _ttl(ttl, "--ttl")
    wanted = _ToolCall(call, _given(call), limit, wait=wait, as_proposal=True)
    CommandSession(where).run(wanted.run)


def _ttl(given: float | None, option: str) -> Ttl:
    return "space" if given is None else seconds(given, option)


def _given(options: CallOptions) -> GivenArguments:
    return read_arguments(options.words or [], options.args, options.args_file)


class _ToolCall(NamedTuple):
    """A call, and the way to make it."""

    options: CallOptions
    given: GivenArguments
    ttl: Ttl  # for the decision and the result
    idempotent: bool = False
    wait: Wait = Wait.ADDRESSED
    as_proposal: bool = False  # whatever we may do

    @property
    def owner(self) -> str:
        return self.options.owner

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.options.tool}"

    async def run(self, session: CommandSession) -> None:
        """Call the tool, and print its result."""
        session.require(self.owner)
        arguments = await self._arguments(session)
        try:
            outcome = await self._invoke(session, arguments)
            session.given_up = ""
            if not isinstance(outcome, Fulfillment | Responded):
                await self._fail(session, outcome)
            if isinstance(outcome, Fulfillment):
                session.stderr.note(f"fulfilled by {outcome.by}")
            await self._print_result(session, outcome)
        except ToolError as error:
            raise Failure(f"{self.name} failed: {error}", code_for(error)) from error
        except RequestError as error:
            by = error.by or self.owner
            raise Failure(f"{by} answered with an error: {error}", code_for(error)) from error

    # --- before the call ---

    async def _arguments(self, session: CommandSession) -> dict[str, Any]:
        """The arguments, read and checked by what the tool's owner says of it."""
        about = f"asking {self.owner} for its tools"
        async with progress_line(session.stderr.console, about):
            tools = await self._tools(session.space)
        if tools is None:
            return convert_arguments(self.given)
        by_name = {str(tool.get("name")): tool for tool in tools}
        if self.options.tool not in by_name:
            hint = did_you_mean(self.options.tool, by_name)
            has = f"its tools: {name_some(list(by_name), MAX_NAMED)}" if by_name else "it has none"
            raise Misuse(f"{self.owner} has no tool {self.options.tool!r}{hint}; {has}")
        schema = by_name[self.options.tool].get("inputSchema")
        inputs = read_input_schema(schema)
        arguments = convert_arguments(self.given, inputs, ArgumentChecker(schema, self.name))
        for remark in unknown_arguments(arguments, inputs):
            session.stderr.note(f"{remark}; sent all the same")
        return arguments

    async def _tools(self, space: Space) -> list[dict[str, Any]] | None:
        """The owner's tools; ``None`` where we may not ask, or get no answer."""
        if not space.may_request(self.owner, payloads.TOOL_LIST, {}):
            return None
        try:
            return await space.offers.tools(self.owner, timeout=LIST_SECONDS)
        except (RequestError, RequestTimeout, Refused, ParticipantGone):
            return None

    # --- the call ---

    async def _invoke(self, session: CommandSession, arguments: dict[str, Any]) -> CallOutcome:
        to, stderr = tuple(self.options.to or ()), session.stderr
        limit = resolve_ttl(self.ttl, session.space.proposals.ttl)
        session.given_up = f"{self.owner} was asked to stop {self.options.tool}"
        async with (
            progress_line(stderr.console, f"waiting for {self.owner}") as waiting,
            background_tasks() as tasks,
        ):

            def note_proposed(proposal: ProposalHandle) -> None:
                session.given_up = f"proposal {proposal.id} was withdrawn"
                session.remark_absence(to)
                able = () if to else self._find_able(session.space, arguments)
                wait = _wait_for(to, able)
                waiting.rename(wait)
                why = "" if self.as_proposal else ", since you may not call it yourself"
                said = f"{self.name}({in_words(arguments, 200)})"
                stderr.note(f"proposed {said} as {proposal.id}{why}; {wait}")
                if not (to or able):
                    missing = self._find_missing(session.space, arguments)
                    said = visible(str(missing), MAX_SENTENCE)
                    stderr.note(f"{said}; it waits for one that may call it to join")
                    tasks.start_soon(self._tell_arrival, session, arguments, waiting)
                tasks.start_soon(_tell_rejections, session, proposal)

            def note_progress(progress: Progress) -> None:
                waiting.rename(f"waiting for {self.owner} to finish")  # it is decided, and runs
                waiting.update(progress)

            return await session.space.invoke(
                self.owner,
                self.options.tool,
                arguments,
                to=to,
                timeout=limit,
                ttl=limit,
                # The time that was given holds, whatever progress comes meanwhile.
                total_timeout=limit,
                wait=self.wait,
                as_proposal=self.as_proposal,
                idempotent=self.idempotent,
                on_progress=note_progress,
                on_proposed=note_proposed,
            )

    def _find_able(self, space: Space, arguments: dict[str, Any]) -> tuple[str, ...]:
        """The other present participants that may make the call, in order."""
        params = {"name": self.options.tool, "arguments": arguments}
        payload = payloads.request(payloads.TOOL_CALL, params, "")
        able = (
            each.id
            for each in space.participants
            if each.id != space.me
            and compile_announced(each.capabilities).allow(
                kinds.MCP_REQUEST, payload, (self.owner,)
            )
        )
        return tuple(sorted(able))

    def _find_missing(self, space: Space, arguments: dict[str, Any]) -> MissingCaller:
        """The missing capability, where no other present participant may make the call."""
        params = {
            "name": self.options.tool,
            "arguments": arguments,
            payloads.META: {payloads.TARGET: self.owner},
        }
        present = [(each.id, each.capabilities) for each in space.participants]
        return find_missing(payloads.Call(payloads.TOOL_CALL, params), present, me=space.me)

    async def _tell_arrival(
        self, session: CommandSession, arguments: dict[str, Any], waiting: ProgressLine
    ) -> None:
        """Tell of the first participant that may make the call, once it has joined."""
        changes = {kinds.SYSTEM_PRESENCE, payloads.GRANT}
        with session.space.watch(lambda envelope: envelope.kind in changes) as envelopes:
            async for _ in envelopes:
                if able := self._find_able(session.space, arguments):
                    waiting.rename(_wait_for((), able))
                    session.stderr.note(f"{_one_of(able)} may decide now")
                    return

    async def _fail(self, session: CommandSession, outcome: Outcome) -> NoReturn:
        """Print what became of the proposal, and raise that as a failure."""
        rejected = outcome if isinstance(outcome, Rejection) else None
        explained = await rejected.explanation(EXPLANATION_SECONDS) if rejected else ""
        document = {
            "outcome": outcome.word,
            "proposal": outcome.proposal_id,
            "by": rejected and rejected.by,
            "reason": rejected and rejected.reason,
            "explanation": explained or None,
        }
        await session.print_json(document)
        if rejected is not None:
            # People read the error: with the words as they were escaped for a terminal.
            error = ProposalRejected(rejected.proposal_id, rejected.reason, rejected.by)
            raise Failure(f"{error} ({explained})" if explained else str(error), code_for(error))
        raise_for(outcome, what=f"proposal {outcome.proposal_id}")

    # --- its result ---

    async def _print_result(self, session: CommandSession, answer: Fulfillment | Responded) -> None:
        """Print the result, and what in it is not as it was proposed."""
        fulfilled = answer if isinstance(answer, Fulfillment) else None
        await session.print_result(self.name, answer.response, _document(answer))
        if fulfilled is None or fulfilled.as_proposed:
            return
        if not fulfilled.knows_edits:
            sentence = "carried out, and no participant confirms that it was as proposed"
        else:
            said = describe_changes(fulfilled.changes) or "how is hidden by the gateway"
            sentence = f"carried out otherwise than proposed: {said}"
        if not self.options.accept_edits:
            raise Failure(f"{sentence}; --accept-edits takes that as success", exit_codes.EDITED)
        session.stderr.note(sentence)


def _wait_for(to: Sequence[str], able: Sequence[str]) -> str:
    """The decision that is waited for: by those asked, else by any participant that may."""
    if to:
        return f"waiting for {shown_names(to)} to decide"
    return f"waiting for a decision{f', which {_one_of(able)} may take' if able else ''}"


def _one_of(names: Sequence[str]) -> str:
    """Those of whom one decides, in words."""
    if len(names) > MAX_DECIDERS:
        return f"one of {len(names)} participants"
    shown = [shown_name(each) for each in names]
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if shown[1:] else shown)


async def _tell_rejections(session: CommandSession, proposal: ProposalHandle) -> None:
    """Tell of each participant that rejects while others may still decide, and its words."""
    told: dict[str, str] = {}  # participant → its first reject, which is the one that counts

    def may_be_told(envelope: Envelope) -> bool:
        if envelope.kind == kinds.CHAT:
            return bool(envelope.correlation)
        return envelope.kind == kinds.MCP_REJECT and proposal.id in envelope.correlation

    with session.space.watch(may_be_told) as envelopes:
        async for envelope in envelopes:
            by = shown_name(envelope.sender)
            if envelope.kind == kinds.CHAT:
                words = envelope.payload_object.get("message")
                is_about = told.get(envelope.sender) in envelope.correlation
                if is_about and isinstance(words, str):
                    told[envelope.sender] = ""  # its first words are told
                    session.stderr.note(f"{by} explains: {visible(words, MAX_SENTENCE)}")
                continue
            if proposal.has_outcome or envelope.sender in told:
                continue
            told[envelope.sender] = envelope.id
            reason = visible(str(envelope.payload_object.get("reason", "")), MAX_NAME)
            session.stderr.note(f"rejected by {by}: {reason}; others may still decide")


def _document(answer: Fulfillment | Responded) -> dict[str, Any]:
    """The result for programs; an answer that is an error raises."""
    fulfilled = answer if isinstance(answer, Fulfillment) else None
    return {
        "outcome": answer.word,
        "result": value_of(answer),
        "executor": answer.by if isinstance(answer, Responded) else answer.executor,
        "proposal": fulfilled and fulfilled.proposal_id,
        "fulfilled_by": fulfilled and fulfilled.by,
        "as_proposed": fulfilled and fulfilled.as_proposed,
        "changes": [structs.asdict(each) for each in fulfilled.changes] if fulfilled else [],
    }
