"""Traces and metrics of a gateway: each proposal with its decision, and its counters.

Comes in: what a space accepts, once it is decided. Goes out: spans and metrics, to the SDK that the
gateway's program has set up. Imported where the configuration asks for it (``tracing``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import CallbackOptions, Observation, get_meter
from opentelemetry.trace import Span, SpanKind, get_tracer, set_span_in_context
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.tracing import (
    CANCEL_REASON,
    CANCELLED_BY,
    DECIDED_BY,
    DECISION_SPAN,
    EXECUTOR,
    OUTCOME,
    PROPOSAL_ID,
    PROPOSAL_SPAN,
    PROPOSED_BY,
    REASON,
    SCOPE,
    SPACE,
    VERDICT,
    begin_under,
    call_attributes,
    cut,
    fail,
    links_to,
    read_traceparent,
    rule_attributes,
)

if TYPE_CHECKING:
    from meup_agent.protocol.space.journal import ProposalChange
    from meup_agent.protocol.space.state.indexes import OpenItem


class GatewayTracer:
    """Makes a span of each proposal, from its acceptance to its end, and of each decision.

    There are as many open spans as open proposals, which the gateway limits.
    """

    def __init__(self, *, trust_proposers: bool) -> None:
        self._tracer = get_tracer(SCOPE)
        self._trust_proposers = trust_proposers
        # By space and id, and then by proposer: a decision names the id alone.
        self._open: dict[tuple[str, str], dict[str, Span]] = {}

    def accepted(
        self,
        space: str,
        envelope: Envelope,
        changes: Sequence[ProposalChange],
        begun: OpenItem | None = None,
    ) -> None:
        """Note what an accepted envelope begins, decides and ends."""
        fulfilled = None if begun is None else begun.fulfills
        if fulfilled is not None:
            self._fulfilling(space, envelope, fulfilled.envelope)
        elif envelope.kind == kinds.MCP_REJECT:
            self._rejected(space, envelope)
        for change in changes:
            if change.begins:
                self._proposed(space, envelope)
            elif change.ended and (span := self._take(space, change.id, change.proposer)):
                self._ended(span, change.state, envelope)

    def close(self) -> None:
        """End every span: what comes later is another gateway's to tell."""
        for spans in self._open.values():
            for span in spans.values():
                span.end()
        self._open.clear()

    def _take(self, space: str, proposal: str, proposer: str) -> Span | None:
        """The span of a proposal, which is open no more."""
        spans = self._open.get((space, proposal), {})
        span = spans.pop(proposer, None)
        if not spans:
            self._open.pop((space, proposal), None)
        return span

    def _proposed(self, space: str, envelope: Envelope) -> None:
        proposal, proposer = envelope.id, envelope.sender
        call = payloads.read_proposal(envelope.payload)
        remote = read_traceparent(call.meta.get(payloads.TRACEPARENT))
        context, links = begin_under(remote, trusted=self._trust_proposers)
        if again := self._take(space, proposal, proposer):  # its proposer used the id again
            again.end()
        self._open.setdefault((space, proposal), {})[proposer] = self._tracer.start_span(
            PROPOSAL_SPAN,
            context,
            kind=SpanKind.SERVER,
            attributes={
                **call_attributes(call),
                SPACE: cut(space),
                PROPOSAL_ID: cut(proposal),
                PROPOSED_BY: cut(proposer),
            },
            links=links,
        )

    def _fulfilling(self, space: str, request: Envelope, proposal: Envelope) -> None:
        """Note that a request carries out a proposal; its own context is linked."""
        params = payloads.as_object(request.payload_object.get("params"))
        said = payloads.as_object(params.get(payloads.META)).get(payloads.TRACEPARENT)
        span = self._open.get((space, proposal.id), {}).get(proposal.sender)
        if span is not None:
            more = {PROPOSAL_ID: cut(proposal.id), EXECUTOR: cut(", ".join(request.to))}
            self._decided(span, "fulfill", request, params, more, said)

    def _rejected(self, space: str, reject: Envelope) -> None:
        payload = reject.payload_object
        # A rejection names ids alone, which several proposers may have used.
        for proposal in reject.correlation:
            more = {PROPOSAL_ID: cut(proposal), REASON: cut(str(payload.get("reason", "")))}
            for span in self._open.get((space, proposal), {}).values():
                self._decided(span, "reject", reject, payload, more)

    def _decided(
        self,
        proposal: Span,
        verdict: str,
        decision: Envelope,
        holder: object,
        more: dict[str, str],
        traceparent: object = None,
    ) -> None:
        self._tracer.start_span(
            DECISION_SPAN,
            set_span_in_context(proposal),
            attributes={
                **rule_attributes(holder),
                **more,
                VERDICT: verdict,
                DECIDED_BY: cut(decision.sender),
            },
            links=links_to(read_traceparent(traceparent)),
        ).end()

    def _ended(self, span: Span, state: ProposalState, envelope: Envelope) -> None:
        span.set_attribute(OUTCOME, str(state))
        if state is ProposalState.WITHDRAWN:
            payload = envelope.payload_object
            span.set_attributes(
                {
                    CANCELLED_BY: cut(payloads.on_behalf_of(envelope.sender, payload)),
                    CANCEL_REASON: cut(str(payload.get("reason", ""))),
                }
            )
        elif state in (ProposalState.REJECTED, ProposalState.EXPIRED):
            fail(span, str(state))
        span.end()


def export_metrics(collector: Collector) -> None:
    """Let an SDK read the numbers that Prometheus gets, under the same names.

    Args:
        collector: Reads the numbers at the moment at which it is asked.
    """
    meter = get_meter(SCOPE)

    def observe(name: str) -> Any:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            for family in collector.collect():
                if family.name == name:
                    yield from (Observation(each.value, each.labels) for each in family.samples)

        return read

    for family in collector.collect():
        if not isinstance(family, CounterMetricFamily | GaugeMetricFamily):
            raise AssertionError(f"{family.name}: only counters and gauges are exported")
        is_counter = isinstance(family, CounterMetricFamily)
        make = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        make(family.name, [observe(family.name)], description=family.documentation)
