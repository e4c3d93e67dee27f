"""Runs a module with an SDK set up, as `opentelemetry-instrument` does: spans are lines of files.

python -m tests.tracing.exporting MODULE ARGUMENTS…
"""

import os
import runpy
import sys
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor


def export_spans(folder: str, service: str) -> None:
    path = Path(folder, f"{service}-{os.getpid()}.jsonl")
    exporter = ConsoleSpanExporter(
        out=path.open("a"), formatter=lambda span: span.to_json(indent=None) + "\n"
    )
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


if __name__ == "__main__":
    export_spans(os.environ["SPANS_FOLDER"], os.environ["OTEL_SERVICE_NAME"])
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
