"""A replica against a daemon that is told what to answer."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sessions_actor.errors import ReplicaUnavailableError
from sessions_actor.replica import Durability, Replica, ReplicaSpec

Answer = dict[str, Any]


class Daemon:
    """Answers each sync with the next of its answers, the last of them again and again."""

    def __init__(self, *answers: tuple[int, int]) -> None:
        self._answers = [{"txid": txid, "replicated_txid": copied} for txid, copied in answers]
        self.asked: list[str] = []

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._serve, str(path))
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            self.asked.append(head.split()[1].decode())
            size = 0
            while (line := await reader.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            await reader.readexactly(size)
            await self._until_ready(self.asked[-1])
            body = json.dumps(self._answer(self.asked[-1])).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async def _until_ready(self, target: str) -> None:
        """Take the time that an answer takes."""

    def _answer(self, target: str) -> Answer:
        if target != "/sync":
            return {}
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def replica(tmp_path: Path, timeout_s: float) -> Replica:
    socket = str(tmp_path / "s")
    spec = ReplicaSpec("file:///far", Durability.REPLICATED, timeout_s, socket)
    return Replica(str(tmp_path / "a.sqlite"), spec)


async def test_a_sync_ends_with_what_it_was_asked_for_however_much_is_written_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon((7, 5), (9, 6), (12, 8))
    async with daemon.listening(tmp_path / "s"):
        one = replica(tmp_path, 30.0)
        with caplog.at_level(logging.WARNING, "sessions_actor"):
            await one.sync()
        one.abandon()
    assert one.position == 8
    assert daemon.asked.count("/sync") == 3
    assert caplog.records == [], "nobody is told that the store is out of reach"


async def test_a_sync_that_does_not_come_to_what_was_asked_fails(tmp_path: Path) -> None:
    async with Daemon((7, 5)).listening(tmp_path / "s"):
        one = replica(tmp_path, 0.1)
        with pytest.raises(ReplicaUnavailableError, match="behind"):
            await one.sync()
        one.abandon()
    assert one.position == 0
