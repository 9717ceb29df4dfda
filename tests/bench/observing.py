"""What counting costs: an append with metrics on beside one with metrics off, and a flush."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sessions_actor import telemetry, wire
from sessions_actor.conversation import Conversation
from sessions_actor.hosted import Hosted
from sessions_actor.metrics_export import MetricsExport
from sessions_actor.open_object import Activation
from sessions_actor.overload import Bounds

from .bench import Bench, line
from .data import Messages
from .measure import Call, Work, at_most, in_turns, medians, middle, rate

IN_FLIGHT = 64


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


@line("metrics")
async def metrics(bench: Bench) -> None:
    """Compare appends that are counted with appends that are not."""
    count = bench.size(2_000, 40)
    async with served(bench) as hosted:
        supply = Messages()
        call = appending(hosted, supply)
        alone = medians(call, count)
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
