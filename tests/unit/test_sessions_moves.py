"""What an export needs and an import gives back: overlays with their ids, configuration, rows."""

from __future__ import annotations

import pytest

from sessions_actor import Compaction, DurableObject, Lifecycle, Sessions, open_object
from sessions_actor.durable_object import ObjectState


class Conversation(DurableObject):
    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.sessions = Sessions()
        self.lifecycle = Lifecycle.install(self).use(self.sessions)
        self.session = self.sessions.session()


def text(message_id: str) -> dict:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": "hi"}]}


async def test_overlays_and_configuration_are_imported_once_and_as_they_were(tmp_path):
    async with open_object(Conversation, name="a", path=tmp_path / "a.sqlite") as source:
        await source.session.append_messages([text(f"m{n}") for n in range(6)])
        await source.session.add_compaction("one", "m0", "m1")
        await source.session.add_compaction("two", "m3", "m4")
        overlays = await source.session.get_compactions()
        assert await source.session.import_config({"model": "m", "a": "b"}) == 2
        history = await source.session.get_history()
        rows = [row async for row in source.session.history_rows()]
    async with open_object(Conversation, name="b", path=tmp_path / "b.sqlite") as target:
        for _ in range(2):
            await target.session.import_messages(rows)
            await target.session.import_compactions(overlays)
            await target.session.import_config({"a": "b", "model": "m"})
        assert await target.session.get_history() == history
        assert await target.session.get_compactions() == overlays
        assert await target.session.get_config() == {"a": "b", "model": "m"}
        assert await target.session.import_compactions(overlays) == 0
        assert await target.session.import_config({"model": "other", "new": "x"}) == 1
        assert (await target.session.get_config())["model"] == "m"


@pytest.mark.parametrize(
    "overlay",
    [
        Compaction("", "s", "a", "b", "2026-01-31T00:00:00.000Z"),
        Compaction("k", "s", "a", "b", "yesterday"),
        Compaction("k", "\ud800", "a", "b", "2026-01-31T00:00:00.000Z"),
    ],
)
async def test_an_ill_formed_overlay_is_refused_whole(tmp_path, overlay):
    good = Compaction("good", "s", "a", "b", "2026-01-31T00:00:00.000Z")
    async with open_object(Conversation, name="a", path=tmp_path / "a.sqlite") as alice:
        with pytest.raises(ValueError, match=r"id|summary|created_at"):
            await alice.session.import_compactions([good, overlay])
        assert await alice.session.get_compactions() == []
