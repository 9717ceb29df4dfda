"""What counting costs: an append with metrics on beside one with metrics off, and a flush."""

from __future__ import annotations

import time
import timeit
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from sessions_actor import meters, reports, telemetry, wire
from sessions_actor.conversation import Conversation
from sessions_actor.hosted import Hosted
from sessions_actor.lifecycle import LifecycleEvents
from sessions_actor.metrics_export import MetricsExport
from sessions_actor.open_object import Activation
from sessions_actor.overload import Bounds

from .bench import Bench, line
from .data import Messages
from .measure import Call, Work, at_most, in_turns, medians, middle, rate

IN_FLIGHT = 64
RECORDINGS = 200


@asynccontextmanager
async def served(bench: Bench) -> AsyncIterator[Hosted]:
    """Serve a conversation in this process: no Ray call hides the cost."""
    activation = Activation(Conversation, name="bench", path=bench.new_file(), epoch=1)
    await activation.start()
    hosted = Hosted(activation, name="bench", epoch=1, bounds=Bounds())
    try:
        yield hosted
    finally:
        await hosted.end()


def appending(hosted: Hosted, supply: Messages) -> Call:
    """Serve one frame with one append per call."""

    async def call(_: int) -> Any:
        args = wire.dump_args([supply.one()], {}, ["message"])
        (answer,) = await hosted.serve(1, [wire.Part("", "append_message", args)])
        if answer.tag == wire.WAITING:  # on a busy machine
            answer = await hosted.remains.collect(answer.data.decode(), 60.0)
        assert answer.tag == wire.OK

    return call


def counting(on: bool, work: Work) -> Work:
    """Do the work with metrics on or off."""

    async def turned() -> float:
        telemetry.record(on)
        try:
            return await work()
        finally:
            telemetry.record(True)

    return turned


def recording(hosted: Hosted) -> Work:
    """Do by itself what is recorded of one append, event and commit; its figure is its time."""
    events, db = LifecycleEvents(), hosted.storage.connection
    reports.watch(hosted, events)

    def once() -> None:
        perf_counter(), perf_counter(), perf_counter(), perf_counter()
        reports.call_ended("append_message", wire.OK, 0.001)
        events.emit("session:message:appended")
        meters.COMMIT_SECONDS.observe(0.001)
        meters.GATE_WAIT_SECONDS.observe(0.001)
        meters.COMMIT_OPS.observe(1)
        meters.ROWS_WRITTEN.inc(by=db.total_changes() - db.total_changes() + 1)

    async def work() -> float:
        # The least of many: whatever else runs on this machine only adds.
        return min(timeit.repeat(once, number=RECORDINGS, repeat=50)) / RECORDINGS

    return work


@line("metrics")
async def metrics(bench: Bench) -> None:
    """Compare what is recorded of an append with the append, and appends with metrics off."""
    count = bench.size(2_000, 40)
    async with served(bench) as hosted:
        supply = Messages()
        call = appending(hosted, supply)
        alone = medians(call, count)
        rounds = await in_turns(bench.repeat, recording(hosted), alone)
        bench.add("metrics, what is recorded of an append", middle(rounds), "s", at_most(0.03))
        rounds = await in_turns(3 * bench.repeat, counting(True, alone), counting(False, alone))
        bench.add("metrics, an append", middle(rounds), "s", at_most(1.03))

        async def together() -> float:
            return 1 / await rate(call, 5 * count, IN_FLIGHT)

        rounds = await in_turns(
            3 * bench.repeat, counting(True, together), counting(False, together)
        )
        bench.add("metrics, an append of 64 in flight", middle(rounds), "s", at_most(1.03))
    await bench.client()  # this process is in a cluster then: what is sent goes the real way
    export = MetricsExport("bench")
    export.flush()
    took = [await _flush(export) for _ in range(bench.size(200, 5))]
    bench.report("metrics, sending once a second", sorted(took)[len(took) // 2], "s")


async def _flush(export: MetricsExport) -> float:
    began = time.perf_counter()
    export.flush()
    return time.perf_counter() - began
