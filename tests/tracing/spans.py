"""What was traced, as a tree."""

import json
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from meup_agent import Agent
from meup_agent.tracing import tracing

ADD: tuple[str, str, dict[str, Any]] = ("tools", "add", {"a": 1, "b": 2})

ABOUT_ADD = {
    "mcp.method.name": "tools/call",
    "gen_ai.tool.name": "add",
    "gen_ai.operation.name": "execute_tool",
}
"""The attributes of each span of that call."""


class Traces:
    """The spans of several services."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()

    def provider(self, service: str, sampler: Sampler | None = None) -> TracerProvider:
        """Keeps what a service traces."""
        provider = TracerProvider(
            sampler, Resource({SERVICE_NAME: service}), shutdown_on_exit=False
        )
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        return provider

    def traced(self, agent: Agent, sampler: Sampler | None = None, **options: Any) -> Agent:
        """Trace an agent, under its own name."""
        agent.use(tracing(tracer_provider=self.provider(agent.name, sampler), **options))
        return agent

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """Every span that has ended, in the order in which they began."""
        return sorted(self._exporter.get_finished_spans(), key=lambda each: each.start_time or 0)

    def named(self, name: str, service: str = "") -> ReadableSpan:
        """The only span of a name."""
        (found,) = [
            each for each in self.spans if each.name == name and service in ("", service_of(each))
        ]
        return found

    def tree(self) -> list[str]:
        """Each span behind its parent, indented below it."""
        return tree(self.spans)


def service_of(span: ReadableSpan) -> str:
    return str(span.resource.attributes[SERVICE_NAME])


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that a span links to."""
    return [each.context.span_id for each in span.links]


def tree(spans: Sequence[ReadableSpan]) -> list[str]:
    """Each span behind its parent, indented below it."""
    return tree_of([json.loads(each.to_json()) for each in spans])


def tree_of(spans: Sequence[dict[str, Any]]) -> list[str]:
    """The tree of spans that were exported; those without a parent that is known come first."""
    known = {each["context"]["span_id"] for each in spans}

    def below(parent: str | None, depth: int) -> list[str]:
        lines: list[str] = []
        for each in spans:
            own = each["parent_id"]
            if (own if own in known else None) == parent:
                kind = each["kind"].removeprefix("SpanKind.").lower()
                service = each["resource"]["attributes"][SERVICE_NAME]
                lines.append(f"{'  ' * depth}{service}: {kind} {each['name']}")
                lines += below(each["context"]["span_id"], depth + 1)
        return lines

    return below(None, 0)
