"""Traces of calls, proposals and decisions, by OpenTelemetry's conventions for MCP.

A :class:`Tracer` makes the spans of one agent, in the places where a session begins and ends
exchanges, and of one gateway. Spans go to whichever SDK the program has set up: this module needs
the API alone (``pip install 'meup-agent[otel]'``), and is imported where traces are asked for.

Of a trace's context only ``traceparent`` is written and read, in ``_meta`` as MCP has it. What else
there is, ``tracestate`` and ``baggage``, is free text of its writer that an executor might act on.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from meup_agent.errors import ConfigurationError
from meup_agent.protocol.wire.outcomes import (
    Fulfillment,
    GatewayRefused,
    Rejection,
    Responded,
    Withdrawal,
)
from meup_agent.protocol.wire.payloads import (
    META,
    PROPOSER,
    RULE,
    TOOL_CALL,
    TRACEPARENT,
    Call,
    JsonObject,
    as_object,
    read_told_rule,
)

try:
    from opentelemetry.context import Context, attach, get_current
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        ProxyTracerProvider,
        Span,
        SpanContext,
        SpanKind,
        StatusCode,
        TraceFlags,
        get_tracer,
        get_tracer_provider,
        set_span_in_context,
    )
except ImportError as error:
    raise ConfigurationError(
        "traces need opentelemetry-api, not installed here; run: pip install 'meup-agent[otel]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from opentelemetry.trace import TracerProvider

    from meup_agent.causes import Cause
    from meup_agent.protocol.wire.outcomes import Ending

SCOPE: Final = "meup_agent"
"""The name of the instrumentation: of our tracer and our meter."""

PROPOSAL_SPAN: Final = "meup.proposal"
DECISION_SPAN: Final = "meup.decision"

ERROR_TYPE: Final = "error.type"
METHOD: Final = "mcp.method.name"
OPERATION: Final = "gen_ai.operation.name"
TOOL: Final = "gen_ai.tool.name"
PROPOSAL_ID: Final = "meup.proposal.id"
PROPOSED_BY: Final = "meup.proposer"
SPACE: Final = "meup.space"
OUTCOME: Final = "meup.outcome"
VERDICT: Final = "meup.decision.verdict"
DECIDED_BY: Final = "meup.decision.by"
REASON: Final = "meup.decision.reason"
RULE_NAME: Final = "meup.decision.rule"
EDITED: Final = "meup.decision.edited"
EXECUTOR: Final = "meup.executor"
CANCELLED_BY: Final = "meup.cancel.by"
CANCEL_REASON: Final = "meup.cancel.reason"
CANCEL_CHAIN: Final = "meup.cancel.chain_length"

TOOL_ERROR: Final = "tool_error"
"""The ``error.type`` of a tool that ran and failed, by the conventions."""

MAX_CHARS: Final = 128
"""Characters of a name or reason in a span: a stranger may have written it."""

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_TRACEPARENT_CHARS: Final = 128


# --- contexts ---


def read_traceparent(value: object) -> SpanContext | None:
    """The span that a W3C ``traceparent`` names; ``None`` where the text names none."""
    if not isinstance(value, str) or len(value) > _MAX_TRACEPARENT_CHARS:
        return None
    read = _TRACEPARENT.fullmatch(value)
    # A later version may have more fields behind those of the first.
    if read is None or read[1] == "ff" or (read[1] == "00" and read[5] is not None):
        return None
    flags = TraceFlags(int(read[4], 16) & TraceFlags.SAMPLED)
    context = SpanContext(int(read[2], 16), int(read[3], 16), is_remote=True, trace_flags=flags)
    return context if context.is_valid else None


def write_traceparent(context: SpanContext) -> str:
    """The W3C ``traceparent`` that names a span."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def begin_under(
    remote: SpanContext | None, *, trusted: bool, otherwise: Context | None = None
) -> tuple[Context, list[Link]]:
    """The context and links of a span that a participant's ``traceparent`` came with.

    Without trust the span belongs to the trace that is there otherwise, or begins one, so that its
    sampling is decided here.
    """
    if remote is not None and trusted:
        return set_span_in_context(NonRecordingSpan(remote), Context()), []
    return otherwise or Context(), links_to(remote)


def links_to(remote: SpanContext | None) -> list[Link]:
    """The link to a span elsewhere, if there is one."""
    return [] if remote is None else [Link(remote)]


# --- attributes ---


def cut(text: str) -> str:
    """A stranger's text, as long as an attribute may be."""
    return text[:MAX_CHARS]


def call_attributes(call: Call) -> dict[str, str]:
    """The attributes of a call, which are known as it begins: samplers may ask for them."""
    if call.method == TOOL_CALL:
        return {METHOD: TOOL_CALL, OPERATION: "execute_tool", TOOL: cut(call.name)}
    return {METHOD: cut(call.method)}


def rule_attributes(holder: object) -> dict[str, str]:
    """The rule that decided, of parameters or a payload; empty where it was a participant."""
    told = read_told_rule(holder)
    return {} if told is None else {RULE_NAME: cut(told.name)}


def fail(span: Span, error_type: str) -> None:
    """Note that a span's work failed."""
    span.set_attribute(ERROR_TYPE, cut(error_type))
    span.set_status(StatusCode.ERROR)


# --- spans ---


class CallSpan:
    """The span of a call or proposal, at its caller or at its executor.

    Args:
        span: The span.
        given_up: The outcome of one that was given up; a proposal is withdrawn then.
    """

    __slots__ = ("_given_up", "_span")

    def __init__(self, span: Span, given_up: str = "cancelled") -> None:
        self._span = span
        self._given_up = given_up

    def inject(self, params: JsonObject) -> JsonObject:
        """The parameters of the call, with the context that its executor reads."""
        said = write_traceparent(self._span.get_span_context())
        return {**params, META: {**as_object(params.get(META)), TRACEPARENT: said}}

    def enter(self) -> None:
        """Let what this task begins belong to the span; for a task that the call has for itself."""
        attach(set_span_in_context(self._span))

    def fail(self, error_type: str) -> None:
        """Note that the call failed."""
        fail(self._span, error_type)

    def note_result(self, result: object) -> None:
        """Note that a tool failed, where its result says so."""
        if as_object(result).get("isError") is True:
            self.fail(TOOL_ERROR)

    def end(self, cause: Cause | None = None) -> None:
        """End it; with the cause, where the call was cancelled."""
        if cause is not None:
            self._span.set_attributes(
                {
                    OUTCOME: self._given_up,
                    CANCELLED_BY: cut(cause.by),
                    CANCEL_REASON: cut(cause.code),
                    CANCEL_CHAIN: len(cause.chain),
                }
            )
        self._span.end()

    def end_by(self, ending: Ending) -> None:
        """End it by the ending of the exchange."""
        if self._span.is_recording():
            self._describe(ending)
        self.end(ending.cause if isinstance(ending, Withdrawal) else None)

    def _describe(self, ending: Ending) -> None:
        word = getattr(ending, "word", type(ending).__name__.lower())
        self._span.set_attribute(OUTCOME, word)
        match ending:
            case Responded() | Fulfillment():
                if isinstance(ending, Fulfillment):
                    self._span.set_attributes(
                        {
                            PROPOSAL_ID: cut(ending.proposal_id),
                            DECIDED_BY: cut(ending.by),
                            EXECUTOR: cut(ending.executor),
                            EDITED: not ending.as_proposed,
                        }
                    )
                if ending.error is not None:
                    self.fail(str(ending.error.get("code", "error")))
                elif ending.is_error:
                    self.fail(TOOL_ERROR)
            case Rejection():
                self._span.set_attributes(
                    {
                        PROPOSAL_ID: cut(ending.proposal_id),
                        DECIDED_BY: cut(ending.by),
                        REASON: cut(ending.reason),
                    }
                )
                self.fail(word)
            case Withdrawal():
                pass
            case GatewayRefused():
                self.fail(ending.error)
            case _:
                self.fail(word)


class _Traced(Protocol):
    def trace(self, tracer: Tracer, /) -> None: ...


class Tracer:
    """Makes the spans of an agent's calls, proposals and decisions; :func:`tracing` gives one."""

    def __init__(self, *, trust_proposers: bool, tracer_provider: TracerProvider | None) -> None:
        self._tracer = get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._trust_proposers = trust_proposers
        self._is_own = tracer_provider is not None

    def install(self, agent: _Traced) -> None:
        """Trace an agent, in all its spaces."""
        agent.trace(self)

    @property
    def has_sdk(self) -> bool:
        """True if there is an SDK: without one there is nothing to tell, and nobody to tell it."""
        return self._is_own or not isinstance(get_tracer_provider(), ProxyTracerProvider)

    def begin_call(self, method: str, params: JsonObject, *, proposes: bool = False) -> CallSpan:
        """Begin the span of a request or proposal of ours, within what runs here."""
        call = Call(method, params)
        return CallSpan(
            self._tracer.start_span(
                PROPOSAL_SPAN if proposes else _name_of(method, call.name),
                kind=SpanKind.CLIENT,
                attributes=call_attributes(call),
            ),
            Withdrawal.word if proposes else "cancelled",
        )

    def begin_handler(self, call: Call, proposals: Iterable[Call], *, is_known: bool) -> CallSpan:
        """Begin the span of a request that is handled here, in the task of its handler.

        Args:
            call: The request.
            proposals: The proposals that it refers to, as far as they were seen. Of a request that
                carries one out, the ``traceparent`` is the proposer's where it stands in one of
                them; else the fulfiller wrote it.
            is_known: There is a handler, so the name of the tool is none that a stranger made up.
        """
        tool = call.name if is_known else ""
        said = call.meta.get(TRACEPARENT)
        seen = [each.meta.get(TRACEPARENT) for each in proposals]
        is_proposers = said in seen or (not seen and PROPOSER in call.meta)
        context, links = begin_under(
            read_traceparent(said), trusted=self._trust_proposers or not is_proposers
        )
        span = CallSpan(
            self._tracer.start_span(
                _name_of(call.method, tool),
                context,
                kind=SpanKind.SERVER,
                attributes=call_attributes(call),
                links=links,
            )
        )
        span.enter()
        return span

    @contextmanager
    def decision(
        self, proposal: Call, proposal_id: str, verdict: str, by: str, rule: JsonObject | None
    ) -> Generator[None]:
        """The span of a decision of ours about a proposal, with what it sends.

        Args:
            proposal: The call that is proposed.
            proposal_id: The proposal's id.
            verdict: ``fulfill`` or ``reject``.
            by: Our own name.
            rule: The rule that decided, where one did.
        """
        context, links = begin_under(
            read_traceparent(proposal.meta.get(TRACEPARENT)),
            trusted=self._trust_proposers,
            otherwise=get_current(),
        )
        attributes = {
            **call_attributes(proposal),
            **rule_attributes({META: {RULE: rule}}),
            PROPOSAL_ID: cut(proposal_id),
            VERDICT: verdict,
            DECIDED_BY: cut(by),
        }
        with self._tracer.start_as_current_span(
            DECISION_SPAN,
            context,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                # Its message may hold what is nobody's to read.
                fail(span, type(error).__qualname__)
                raise


def _name_of(method: str, tool: str) -> str:
    return f"{cut(method)} {cut(tool)}" if tool else cut(method)


def tracing(
    *, trust_proposers: bool = False, tracer_provider: TracerProvider | None = None
) -> Tracer:
    """Traces for an agent: ``agent.use(tracing())``, to an SDK that is there when it joins.

    Args:
        trust_proposers: Let the spans of a decision, and of what it runs, belong to the trace that
            the proposer names, and be sampled as that is. By default they only link to it: a
            proposer could have everything recorded, or nothing.
        tracer_provider: Where the spans go; ``None``: where the program's SDK sends them.

    Returns:
        What :meth:`Agent.use <meup_agent.Agent.use>` takes; one may serve several agents.
    """
    return Tracer(trust_proposers=trust_proposers, tracer_provider=tracer_provider)
