"""Spans from caller to commit, and nothing at all where nobody traces."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from sessions_actor import DurableObject, Lifecycle, ObjectState, Sessions, tracing, wire
from sessions_actor.channel import Address, Channel
from sessions_actor.hosted import Hosted
from sessions_actor.open_object import Activation
from sessions_actor.overload import Bounds

SECRET = "what nobody else should read"


class Host(DurableObject):
    """A conversation that can fail."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.sessions = Sessions()
        self.lifecycle = Lifecycle.install(self).use(self.sessions)

    async def fail(self) -> None:
        """Raise an error that quotes."""
        raise LookupError(SECRET)


class Remote:
    """What `actor.serve` is to a channel: `.remote(frame)` gives something to await."""

    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted

    @property
    def serve(self) -> Any:
        return self

    def remote(self, frame: bytes) -> asyncio.Future[bytes]:
        return asyncio.ensure_future(self._serve(frame))

    async def _serve(self, frame: bytes) -> bytes:
        _, epoch, parts = wire.unpack_request(frame)
        return wire.pack_reply(await self._hosted.serve(epoch, parts))


class Owner:
    """A resolver that knows the one owner."""

    call_timeout_s = 20.0
    bounds = Bounds()

    def __init__(self, address: Address) -> None:
        self._address = address

    async def resolve(self, name: str, failed: Address | None) -> Address:
        return self._address

    async def succession(self, name: str, epoch: int, wait_s: float) -> None:
        return None


@pytest.fixture
async def channel(tmp_path: Path) -> AsyncIterator[Channel]:
    activation = Activation(Host, name="alice", path=tmp_path / "alice.sqlite", epoch=1)
    await activation.start()
    hosted = Hosted(activation, name="alice", epoch=1, bounds=Bounds())
    yield Channel("alice", Owner(Address("alice", 1, Remote(hosted))))
    await hosted.end()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Trace to memory, for this test alone."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", lambda: provider.get_tracer("test"))
    monkeypatch.setattr(tracing, "active", False)
    return exporter


def append(channel: Channel, message_id: str) -> Any:
    message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": SECRET}]}
    args = wire.dump_args([message], {}, ["message"])
    return channel.call("", "append_message", args)


def of_kind(spans: InMemorySpanExporter, kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.kind is kind]


async def test_a_call_is_traced_from_the_caller_to_the_commit(
    channel: Channel, spans: InMemorySpanExporter
) -> None:
    await append(channel, "m1")
    (client,) = of_kind(spans, SpanKind.CLIENT)
    (actor,) = of_kind(spans, SpanKind.SERVER)
    (commit,) = of_kind(spans, SpanKind.INTERNAL)
    assert client.parent is None
    assert client.context is not None
    assert actor.context is not None
    assert actor.parent is not None
    assert commit.parent is not None
    assert actor.parent.span_id == client.context.span_id
    assert commit.parent.span_id == actor.context.span_id
    assert client.context.trace_id == actor.context.trace_id == commit.parent.trace_id
    assert [span.name for span in (client, actor, commit)] == [
        "conversation append_message",
        "conversation append_message",
        "conversation commit",
    ]
    assert actor.attributes is not None
    assert actor.attributes["sessions_actor.conversation"] == "alice"
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_parts_of_one_frame_keep_their_own_callers(
    channel: Channel, spans: InMemorySpanExporter
) -> None:
    tracer = tracing._tracer()

    async def call(number: int) -> None:
        with tracer.start_as_current_span(f"request {number}"):
            await append(channel, f"m{number}")

    await asyncio.gather(*(call(number) for number in range(5)))
    finished = {span.context.span_id: span for span in spans.get_finished_spans() if span.context}
    served = of_kind(spans, SpanKind.SERVER)
    roots = set()
    for span in served:
        while span.parent is not None:
            span = finished[span.parent.span_id]
        roots.add(span.name)
    assert roots == {f"request {number}" for number in range(5)}


async def test_a_failure_is_told_by_its_class(
    channel: Channel, spans: InMemorySpanExporter
) -> None:
    with pytest.raises(LookupError):
        await channel.call("", wire.CALL, wire.dump_call("fail", [], {}))
    await asyncio.sleep(0)  # the caller's span ends in the loop's next turn
    failed = [*of_kind(spans, SpanKind.CLIENT), *of_kind(spans, SpanKind.SERVER)]
    assert len(failed) == 2
    for span in failed:
        assert span.name == "conversation call"
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == "builtins.LookupError"
        assert SECRET not in span.to_json()


async def test_who_does_not_trace_sends_no_span(channel: Channel) -> None:
    assert tracing.client_span("alice", "", "append_message") is None
    await append(channel, "m1")
    assert tracing.active is False


async def test_an_actor_that_cannot_trace_serves_all_the_same(channel: Channel) -> None:
    """The caller traces, this process has no provider."""
    parent = f"00-{1:032x}-{2:016x}-01"
    with tracing.actor_span(parent, "alice", "", "append_message") as span:
        span.failed(LookupError(SECRET))
    assert tracing.active is False


def test_nothing_is_imported_where_nobody_traces() -> None:
    code = """
import asyncio, sys, tempfile
from sessions_actor import open_object, tracing
from sessions_actor.conversation import Conversation
import sessions_actor.actor, sessions_actor.channel
async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with open_object(Conversation, name="alice", path=folder + "/a.sqlite") as alice:
            await alice.session.append_message({"id": "m", "role": "user", "parts": []})
asyncio.run(main())
assert tracing.client_span("alice", "", "append_message") is None
sys.exit(any(name.startswith("opentelemetry") for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
