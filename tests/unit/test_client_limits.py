"""Limits on what `source="client"` writes: off by default, and what they leave alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router import Settings
from sessions_actor import DurableObject, Lifecycle, ObjectState, Sessions, open_object
from sessions_actor.codec import dumps
from sessions_actor.conversation import Conversation
from sessions_actor.hosted import Hosted
from sessions_actor.limits import ClientLimits
from sessions_actor.open_object import Activation
from sessions_actor.overload import Bounds


def message(id: str, text: str, parts: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "role": "user",
        "parts": [{"type": "text", "text": text} for _ in range(parts)],
        **more,
    }


class Limited(DurableObject):
    """A host that holds clients to 300 bytes and 3 parts."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.sessions = Sessions(client_message_bytes_max=300, client_parts_max=3)
        self.lifecycle = Lifecycle.install(self).use(self.sessions)
        self.session = self.sessions.session()


async def test_without_a_setting_there_is_no_limit(tmp_path: Path) -> None:
    async with open_object(Conversation, name="a", path=tmp_path / "a.sqlite") as host:
        big = message("m", "x" * 3_000_000, parts=2)
        result = await host.sessions.session().append_message(big, source="client")
        assert result.inserted
    assert Settings().client_limits == ClientLimits(None, None)


async def test_a_clients_message_may_be_as_long_as_the_limit_and_no_longer(tmp_path: Path) -> None:
    async with open_object(Limited, name="a", path=tmp_path / "a.sqlite") as host:
        frame = len(dumps(message("m", "")))
        fits = message("m", "x" * (300 - frame))
        assert (await host.session.append_message(fits, source="client")).inserted
        over = message("n", "x" * (299 - frame) + "é")
        assert len(dumps(over)) == 301, "bytes count, not characters"
        with pytest.raises(ValueError, match=r"bytes of JSON, client_message_bytes_max is 300"):
            await host.session.append_message(over, source="client")
        assert await host.session.get_message("n") is None
        assert (await host.session.append_message(over)).inserted, "the server is trusted"


async def test_a_clients_message_has_at_most_so_many_parts(tmp_path: Path) -> None:
    async with open_object(Limited, name="a", path=tmp_path / "a.sqlite") as host:
        assert (await host.session.append_message(message("m", "", 3), source="client")).inserted
        with pytest.raises(ValueError, match=r"message.parts: 4 parts, client_parts_max is 3"):
            await host.session.append_message(message("n", "", 4), source="client")


async def test_what_is_stripped_or_stored_outside_counts_as_it_was_sent(tmp_path: Path) -> None:
    async with open_object(Limited, name="a", path=tmp_path / "a.sqlite") as host:
        image = {"id": "i", "role": "user", "parts": [
            {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64," + "A" * 400}
        ]}  # fmt: skip
        padded = message("p", "", metadata={"note": "x" * 400})
        for one in (image, padded):
            with pytest.raises(ValueError, match="client_message_bytes_max"):
                await host.session.append_message(one, source="client")
        assert await host.session.get_history() == []


async def test_a_transcript_posted_back_is_not_refused_for_what_is_stored_already(
    tmp_path: Path,
) -> None:
    async with open_object(Limited, name="a", path=tmp_path / "a.sqlite") as host:
        session = host.session
        answer = message("answer", "long " * 1_000)
        await session.append_message(answer)
        results = await session.append_messages([answer, message("next", "more")], source="client")
        assert [one.inserted for one in results] == [False, True]
        assert await session.update_message(answer, source="client") == answer
        assert not (await session.upsert_message(answer, source="client")).inserted
        overlay = await session.add_compaction("so far " * 100, "answer", "answer")
        shown = await anext(session.history())
        assert shown["id"] == f"compaction_{overlay.id}"
        assert not (await session.append_message(shown, source="client")).inserted


async def test_one_message_too_long_refuses_the_whole_batch_and_changes(tmp_path: Path) -> None:
    async with open_object(Limited, name="a", path=tmp_path / "a.sqlite") as host:
        session = host.session
        long = message("long", "x" * 400)
        with pytest.raises(ValueError, match="client_message_bytes_max"):
            await session.append_messages([message("a", "short"), long], source="client")
        assert await session.get_history() == []
        await session.append_message(message("a", "short"))
        for change in (session.update_message, session.upsert_message):
            with pytest.raises(ValueError, match="client_message_bytes_max"):
                await change(message("a", "y" * 400), source="client")
        with pytest.raises(ValueError, match="client_message_bytes_max"):
            await session.upsert_message(long, source="client")
        assert await session.get_history() == [message("a", "short")]


async def test_the_tighter_of_the_deployments_and_the_classes_limits_holds(tmp_path: Path) -> None:
    for deployed, allowed in (
        (ClientLimits(200, None), (200, 3)),
        (ClientLimits(1_000, 2), (300, 2)),
        (ClientLimits(), (300, 3)),
    ):
        activation = Activation(Limited, name="a", path=tmp_path / "a.sqlite")
        host = await activation.start()
        hosted = Hosted(activation, name="a", epoch=0, bounds=Bounds(), client_limits=deployed)
        limits = host.sessions.client_limits
        assert (limits.message_bytes_max, limits.parts_max) == allowed
        await hosted.end()


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "7"])
def test_a_limit_that_is_none(limit: Any) -> None:
    with pytest.raises(ValueError, match="client_parts_max"):
        Sessions(client_parts_max=limit)
    with pytest.raises(ValueError, match="client_message_bytes_max"):
        Sessions(client_message_bytes_max=limit)
