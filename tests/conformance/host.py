"""A conversation class of one's own that lets scenarios look behind the Session methods.

It is what a deployment would write: a host with the Sessions capability, a summariser installed,
and public async methods of its own. In process they are called on the object, on a cluster
through ``handle.call``. Arguments and results are JSON.
"""

from typing import Any

from sessions_actor import DurableObject, Lifecycle, Sessions, create_compact_function
from sessions_actor.records import LEAF, ChangeEvent, Compaction

RESERVED = ("channel", "turnMetadata")


def compaction_json(compaction: Compaction) -> dict[str, Any]:
    """Write an overlay record as scenarios do."""
    return {
        "id": compaction.id,
        "summary": compaction.summary,
        "fromMessageId": compaction.from_message_id,
        "toMessageId": compaction.to_message_id,
        "createdAt": compaction.created_at,
    }


def event_json(event: ChangeEvent) -> dict[str, Any]:
    """Write a change event as scenarios do: only the keys its type carries, in this order."""
    row: dict[str, Any] = {"type": event.type, "sessionId": event.session_id}
    if event.message is not None:
        row["message"] = event.message
    if event.type in {"append", "import"} and event.parent_id is not LEAF:
        row["parentId"] = event.parent_id
    if event.inserted is not None:
        row["inserted"] = event.inserted
    if event.message_ids is not None:
        row["messageIds"] = list(event.message_ids)
    if event.compaction is not None:
        row["compaction"] = compaction_json(event.compaction)
    return row


class ConformanceObject(DurableObject):
    """A conversation whose storage, events and prompts can be read from outside."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.sessions = Sessions(reserved_metadata_keys=RESERVED)
        self.lifecycle = Lifecycle.install(self).use(self.sessions)
        self.session = self.sessions.session()
        self.events: list[dict[str, Any]] = []
        self.asked: str | None = None
        self.sessions.subscribe(lambda event: self.events.append(event_json(event)))

    async def take_events(self) -> list[dict[str, Any]]:
        """Return the change events since the last call."""
        events, self.events = self.events, []
        return events

    async def sql(self, query: str, params: list[Any]) -> list[dict[str, Any]]:
        """Run a query on the conversation's own file."""
        return list(self.storage.sql.exec(query, *params))

    async def rows_written(self, query: str, params: list[Any]) -> int:
        """Run a statement and return how many rows it wrote."""
        return self.storage.sql.exec(query, *params).rows_written

    async def database_size(self) -> int:
        """Return the size of the file in bytes."""
        return self.storage.database_size

    async def install_summary(self, session_id: str, summary: str, keep: int | None) -> bool:
        """Install a compact function whose summariser notes its prompt and answers ``summary``."""

        def summarize(prompt: str) -> str:
            self.asked = prompt
            return summary

        options = {} if keep is None else {"keep_recent_tokens": keep}
        compact = create_compact_function(summarize=summarize, **options)
        self.sessions.session(session_id).on_compaction(compact)
        return True

    async def last_prompt(self) -> str | None:
        """Return the prompt the summariser was last asked."""
        return self.asked

    async def compact_after(self, session_id: str, tokens: int) -> bool:
        """Compact by itself once the session's estimate exceeds ``tokens``."""
        self.sessions.session(session_id).compact_after(tokens)
        return True
