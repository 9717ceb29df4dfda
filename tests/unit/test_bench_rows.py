"""Rows written per operation: what a bill for storage counts, and what a secondary index would
double.

Source: specification, "Storage economics".
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sessions_actor import open_object
from sessions_actor.conversation import Conversation
from sessions_actor.limits import KIB, MIB

MB = 1_000_000


def text(size: int, message_id: str = "m") -> Any:
    """Make a message of so many bytes of text."""
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": "x" * size}]}


def image(size: int, message_id: str = "m") -> Any:
    """Make a message with an image of so many bytes."""
    url = "data:image/png;base64," + base64.b64encode(bytes(size)).decode()
    part = {"type": "file", "mediaType": "image/png", "url": url}
    return {"id": message_id, "role": "user", "parts": [part]}


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Conversation]:
    """A conversation with one message."""
    async with open_object(Conversation, name="rows", path=tmp_path / "rows.sqlite") as found:
        await found.session.append_message(text(10, "first"))
        yield found


async def rows_written(host: Conversation, work: Callable[[], Awaitable[object]]) -> int:
    """Count the rows that some work writes, of whatever table."""
    before = host.storage.connection.total_changes()
    await work()
    return host.storage.connection.total_changes() - before


@pytest.mark.parametrize(
    ("message", "rows"),
    [
        pytest.param(text(700), 1, id="text"),
        pytest.param(text(2 * MB), 2, id="2 MB of text"),
        pytest.param(text(5 * MB), 4, id="5 MB of text"),
        pytest.param(image(200 * KIB), 4, id="200 KB image"),
        pytest.param(image(2 * MIB), 5, id="2 MiB image"),
    ],
)
async def test_an_append_writes(host: Conversation, message: Any, rows: int) -> None:
    assert await rows_written(host, lambda: host.session.append_message(message)) == rows
    assert await host.session.get_message("m") == message


@pytest.mark.parametrize("message", [text(700), text(2 * MB), image(2 * MIB)])
async def test_what_is_stored_already_writes_nothing(host: Conversation, message: Any) -> None:
    session = host.session
    await session.append_message(message)
    assert await rows_written(host, lambda: session.update_message(message)) == 0
    assert await rows_written(host, lambda: session.upsert_message(message)) == 0
    assert await rows_written(host, lambda: session.append_message(message)) == 0


async def test_an_update_writes_its_row(host: Conversation) -> None:
    await host.session.append_message(text(700))
    assert await rows_written(host, lambda: host.session.update_message(text(701))) == 1


async def test_a_payload_that_is_held_already_is_not_written_again(host: Conversation) -> None:
    await host.session.append_message(image(2 * MIB))
    again = image(2 * MIB, "again")
    assert await rows_written(host, lambda: host.session.append_message(again)) == 2


async def test_a_batch_writes_a_row_each(host: Conversation) -> None:
    batch = [text(700, f"m{number}") for number in range(100)]
    assert await rows_written(host, lambda: host.session.append_messages(batch)) == 100


async def test_reads_write_nothing(host: Conversation) -> None:
    session = host.session
    await session.append_message(image(2 * MIB))

    async def reads() -> None:
        assert len(await session.get_history()) == 2
        assert (await session.get_recent_history(100)).truncated
        assert await session.get_branches("first")
        assert await session.get_latest_leaf()
        assert await session.get_history_row_stats()

    assert await rows_written(host, reads) == 0


async def test_the_host_s_own_sql_reports_its_rows(host: Conversation) -> None:
    sql = host.storage.sql
    assert sql.exec("CREATE TABLE own (id INTEGER PRIMARY KEY, text)").rows_written == 0
    assert sql.exec("INSERT INTO own VALUES (1, 'a'), (2, 'b')").rows_written == 2
    assert sql.exec("SELECT * FROM own").rows_written == 0
