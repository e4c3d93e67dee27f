"""Sets up an SDK, as `opentelemetry-instrument` does: each span is a line of a file.

Python imports it as a program starts, where this folder is on its path.
"""

import os
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

if folder := os.environ.get("SPANS_FOLDER"):
    path = Path(folder, f"{os.environ['OTEL_SERVICE_NAME']}-{os.getpid()}.jsonl")
    exporter = ConsoleSpanExporter(
        out=path.open("a"), formatter=lambda span: span.to_json(indent=None) + "\n"
    )
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
