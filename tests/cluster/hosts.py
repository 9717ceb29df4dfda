"""Classes that the deployments of these tests host."""

import asyncio
import os
from typing import Any

from sessions_actor import DurableObject, Lifecycle, ObjectState, Sessions


class Host(DurableObject):
    """A conversation with methods of its own."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.sessions = Sessions()
        self.lifecycle = Lifecycle.install(self).use(self.sessions)
        self.session = self.sessions.session()
        self.release = asyncio.Event()

    async def pid(self) -> int:
        """Say which process this is."""
        return os.getpid()

    async def count(self, by: int = 1) -> int:
        """Add to a durable counter; returns what it came to."""
        value = (await self.storage.get("count") or 0) + by
        await self.storage.put("count", value)
        return value

    async def hold(self) -> str:
        """Wait until someone calls `let_go`."""
        await self.release.wait()
        return "released"

    async def let_go(self) -> None:
        """End `hold`."""
        self.release.set()

    async def fail(self, how: str) -> Any:
        """Raise."""
        if how == "keyword":
            raise KeywordOnlyError(code=7)
        raise LookupError(f"nothing is called {how}")

    async def _hidden(self) -> None:
        """Not to be called from outside."""


class KeywordOnlyError(Exception):
    """An error that does not pickle."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class FailsAtStart(Host):
    """A conversation that cannot start."""

    async def on_start(self) -> None:
        """Raise."""
        raise LookupError("the model's weights are missing")


class Summarising(Host):
    """A conversation that compacts itself."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)

        async def summarise(messages: list[Any]) -> Any:
            from sessions_actor import CompactResult

            if len(messages) < 4:
                return None
            return CompactResult("so far", messages[0]["id"], messages[-3]["id"])

        self.session.on_compaction(summarise).compact_after(50)


class SlowSummary(Host):
    """A conversation whose summariser waits for `let_go`."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)

        self.asked = 0

        async def summarise(messages: list[Any]) -> Any:
            from sessions_actor import CompactResult

            self.asked += 1
            await self.release.wait()
            return CompactResult("so far", messages[0]["id"], messages[-2]["id"])

        self.session.on_compaction(summarise).compact_after(30)

    async def times_asked(self) -> int:
        """Say how often the summariser was called."""
        return self.asked


class Quoting(Host):
    """A conversation whose every failure quotes what it was given."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)

        async def summarise(messages: list[Any]) -> Any:
            raise LookupError(f"cannot summarise {messages}")

        def hear(event: Any) -> None:
            raise LookupError(f"cannot hear {event}")

        self.session.on_compaction(summarise).compact_after(200)
        self.lifecycle.events.subscribe(hear)
        self.sessions.subscribe(hear)

    async def quote(self, text: str) -> None:
        """Raise an error that quotes."""
        raise LookupError(f"cannot do {text}")

    async def quote_keyword(self, text: str) -> None:
        """Raise an error that quotes and does not pickle."""
        raise QuotingError(text=text)

    async def quote_sql(self, text: str) -> None:
        """Have SQLite raise an error that quotes the statement."""
        self.storage.sql.exec(f"SELECT {text} FROM nothing WHERE")

    async def emit(self, text: str) -> None:
        """Tell of trouble in words that quote."""
        self.lifecycle.events.emit("host:error", {"error": f"cannot {text}", "text": text})
        self.lifecycle.events.emit("host:failed", {"error": LookupError(text)})

    async def fail_later(self, text: str) -> None:
        """Fail after the call was answered with a ticket."""
        await asyncio.sleep(0.2)
        raise LookupError(f"cannot wait for {text}")


class QuotingError(Exception):
    """An error that quotes and does not pickle."""

    def __init__(self, *, text: str) -> None:
        super().__init__(f"cannot quote {text}")
        self.text = text
