"""A SQLite file of a Durable Object, as workerd stores it: every session it holds is carried over.

The file is opened by the engine itself, in this process and as a copy, so that the original is not
written to, and tables of older versions are lifted in the copy first. Messages with their
branches and times, overlays, attachments and configuration are imported; what the object kept
beside its sessions (key-value entries in workerd's own encoding, tables of its own) is named and
stays behind.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from sessions_actor.durable_object import DurableObject, ObjectState
from sessions_actor.errors import StorageCorruptError
from sessions_actor.lifecycle import Lifecycle, LifecycleEvent
from sessions_actor.open_object import open_object
from sessions_actor.sessions import Sessions

from .base import ConfigItem, ImportedConversation, Item, MessageItem, OverlayItem, Reader

_INCOMPLETE = "session:migration:incomplete"
_COUNTS = ("table", "source", "copied")
_OURS = ("cf_agents_session_", "sessions_actor_")


def read_durable_object(reader: Reader) -> Iterator[ImportedConversation]:
    """Yield the one conversation of a file, named by the file unless told otherwise.

    A row that cannot be lifted is reported. Raises: StorageCorruptError for a file that is no sound
    database.
    """
    yield ImportedConversation(reader.source.stem, _items(reader))


class _Host(DurableObject):
    """The least object that holds sessions."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.sessions = Sessions()
        self.lifecycle = Lifecycle.install(self).use(self.sessions)
        self.incomplete: list[LifecycleEvent] = []
        self.lifecycle.events.subscribe(self._note)

    def _note(self, event: LifecycleEvent) -> None:
        if event.type == _INCOMPLETE:
            self.incomplete.append(event)


async def _items(reader: Reader) -> AsyncIterator[Item]:
    try:
        async for item in _copied_items(reader):
            yield item
    except StorageCorruptError as error:  # of the copy: say it of the file
        raise StorageCorruptError(reader.source.label, error.check) from error


async def _copied_items(reader: Reader) -> AsyncIterator[Item]:
    label = reader.source.label
    with tempfile.TemporaryDirectory(prefix="sessions-actor-") as folder:
        path = Path(folder) / "object.sqlite"
        _copy(reader, path)
        async with open_object(_Host, name="import", path=path) as host:
            for event in host.incomplete:
                table, of, copied = (event.payload.get(key) for key in _COUNTS)
                reason = f"{copied} of {of} rows could be read; the rest stays in the file"
                reader.problem(f"table {table}", reason)
            lifted = {event.payload.get("table") for event in host.incomplete}
            session_ids = host.sessions.engine.store.session_ids()
            if not session_ids and not lifted:
                raise ValueError(f"{label}: it holds no sessions")
            for session_id in session_ids:
                async for item in _session_items(host, session_id, label):
                    yield item
            for table in host.storage.data_tables():
                if not table.startswith(_OURS) and table not in lifted:
                    reader.note(f"table {table}", "no part of the sessions: it stays in the file")


async def _session_items(host: _Host, session_id: str, label: str) -> AsyncIterator[Item]:
    session = host.sessions.session(session_id)
    for key, value in (await session.get_config()).items():
        yield ConfigItem(session_id, key, value, f"{label}, configuration {key!r}")
    async for row in session.history_rows():
        place = f"{label}, message {row.message['id']!r}"
        yield MessageItem(session_id, dict(row.message), row.parent_id, row.created_at, place)
    for overlay in await session.get_compactions():
        yield OverlayItem(session_id, overlay, f"{label}, overlay {overlay.id!r}")


def _copy(reader: Reader, target: Path) -> None:
    with target.open("wb") as copy:
        while data := reader.source.read(1 << 20):
            copy.write(data)
    # Writes that workerd had not yet folded into the file lie beside it.
    wal = Path(reader.source.label + "-wal")
    if wal.is_file():
        shutil.copyfile(wal, target.with_name(target.name + "-wal"))
