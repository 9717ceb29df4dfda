"""Spans of OpenTelemetry: from the caller through the actor to the commit. Optional.

Rules:
- Nothing of OpenTelemetry is imported here until someone traces: a caller whose process has set
  up a tracer provider, or a request that carries a span. Otherwise a call costs one look-up.
- The caller's span travels with its part of a frame, as a W3C `traceparent`: parts that travel
  together belong to different callers.
- Spans carry the conversation, the session, the method and the class of an error, never content.

A process of a deployment is given its provider by the function that `settings.tracing` names;
`sessions_actor.tracing:otlp` is one, configured by the OTEL_* environment.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Awaitable, Iterator
from typing import Any, Final, TypeVar

T = TypeVar("T")

_API: Final = "opentelemetry.trace"
_SCOPE: Final = "sessions_actor"

active = False
"""Whether this process has been given a part that is traced: then commits have spans as well."""


def _tracer() -> Any:
    """Return the tracer of this process, or None when it has no provider."""
    api = sys.modules.get(_API)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    return None if isinstance(provider, api.ProxyTracerProvider) else provider.get_tracer(_SCOPE)


class ClientSpan:
    """A caller's span around one call."""

    __slots__ = ("_span", "parent")

    def __init__(self, span: Any) -> None:
        self._span = span
        context = span.get_span_context()
        # What travels: the span as traceparent.
        self.parent: str = (
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        )

    def end(self, error: BaseException | None = None) -> None:
        """End the span."""
        if error is not None:
            _fail(self._span, error)
        self._span.end()


def client_span(conversation: str, session_id: str, method: str) -> ClientSpan | None:
    """Begin a caller's span below its current one; None when nobody traces.

    Cost: one look-up in a process without OpenTelemetry.
    """
    tracer = _tracer()
    if tracer is None:
        return None
    api = sys.modules[_API]
    span = tracer.start_span(
        _name(method),
        kind=api.SpanKind.CLIENT,
        attributes=_attributes(conversation, session_id, method),
    )
    return ClientSpan(span) if span.get_span_context().is_valid else None


@contextlib.contextmanager
def actor_span(parent: str, conversation: str, session_id: str, method: str) -> Iterator[Any]:
    """Run what a part asks for in a span below the caller's, where this process can trace.

    Yields: something to tell of an error: `failed(error)`.
    """
    global active
    try:
        from opentelemetry import trace as api
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        yield _NOTHING
        return
    tracer = _tracer()
    if tracer is None:
        yield _NOTHING
        return
    active = True
    context = TraceContextTextMapPropagator().extract({"traceparent": parent})
    with tracer.start_as_current_span(
        _name(method),
        context=context,
        kind=api.SpanKind.SERVER,
        attributes=_attributes(conversation, session_id, method),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield _Telling(span)


async def waited(work: Awaitable[T], what: str) -> T:
    """Await something in a span below the current one."""
    tracer = _tracer()
    if tracer is None:
        return await work
    with tracer.start_as_current_span(
        f"conversation {what}", record_exception=False, set_status_on_exception=False
    ):
        return await work


class _Telling:
    def __init__(self, span: Any) -> None:
        self._span = span

    def failed(self, error: BaseException) -> None:
        if self._span is not None:
            _fail(self._span, error)


_NOTHING: Final = _Telling(None)


def _fail(span: Any, error: BaseException) -> None:
    """Mark a span with an error's class: its text may quote a message."""
    api = sys.modules[_API]
    kind = type(error)
    span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}")
    span.set_status(api.Status(api.StatusCode.ERROR))


def _name(method: str) -> str:
    # Methods that only handles call are written with a mark.
    return f"conversation {method.lstrip('#')}"


def _attributes(conversation: str, session_id: str, method: str) -> dict[str, str]:
    return {
        "sessions_actor.conversation": conversation,
        "sessions_actor.session": session_id,
        "rpc.system": "ray",
        "rpc.method": method.lstrip("#"),
    }


def otlp(role: str) -> None:
    """Set up a provider that sends spans by OTLP, to where the OTEL_* environment says.

    Needs `opentelemetry-sdk` and `opentelemetry-exporter-otlp-proto-http`.
    """
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": f"sessions-actor-{role}"}))
    exporting = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    provider.add_span_processor(BatchSpanProcessor(exporting.OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
