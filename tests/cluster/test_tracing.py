"""Spans across processes: the caller's here, the actor's and its commit's in the actor."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider

from sessions_actor import tracing

from .conftest import Deploy, message, until
from .test_logs import log_folder


def trace_to_stderr(role: str) -> None:
    """Set up what `settings.tracing` names: spans go to the actor's log, one a line."""
    import sys

    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    provider = TracerProvider()
    exporter = ConsoleSpanExporter(
        out=sys.stderr, formatter=lambda span: f"span {span.to_json(indent=None)}\n"
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def spans_of(name: str) -> dict[str, dict[str, Any]]:
    """Return the actor's spans of a trace that has this conversation, by kind."""
    spans = [
        json.loads(line.removeprefix("span "))
        for file in log_folder().glob("worker-*.err")
        for line in file.read_text(errors="replace").splitlines()
        if line.startswith("span {")
    ]
    traces = {
        span["context"]["trace_id"]
        for span in spans
        if span["attributes"].get("sessions_actor.conversation") == name
    }
    return {span["name"]: span for span in spans if span["context"]["trace_id"] in traces}


async def test_a_trace_goes_from_the_caller_to_the_commit(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = TracerProvider().get_tracer("test")
    monkeypatch.setattr(tracing, "_tracer", lambda: tracer)
    name = f"alice-{uuid.uuid4().hex}"
    async with deploy(tracing="tests.cluster.test_tracing:trace_to_stderr") as client:
        session = client.get(name).session()
        with tracer.start_as_current_span("request") as request:
            await session.append_message(message("m1"))
        found = await until(
            lambda: len(spans := spans_of(name)) == 2 and spans, "the spans are in the log"
        )
    served, commit = found["conversation append_message"], found["conversation commit"]
    trace_id = f"0x{request.get_span_context().trace_id:032x}"
    assert served["context"]["trace_id"] == commit["context"]["trace_id"] == trace_id
    assert commit["parent_id"] == served["context"]["span_id"]
    assert served["parent_id"] not in (None, f"0x{request.get_span_context().span_id:016x}")
