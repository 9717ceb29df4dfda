"""Writers that keep what was acknowledged to them, and the check against what is stored.

A writer appends one message (or a few at once) after the other, each under the conversation's
leaf, so that a conversation is one path in which every writer's messages stand in its order. What
fails is noted and asked again under the same ids: a client that comes back after an error.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from typing import Any, Final

# The most messages of one append.
BATCH_MAX: Final = 4
RETRY_S: Final = 0.2


class Ledger:
    """What the writers of a run were told, together."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.worst_s = 0.0
        self.worst_of = ""
        self.errors: Counter[str] = Counter()

    def note(self, name: str, count: int, seconds: float) -> None:
        """Note an acknowledgement and how long it took since it was first asked for."""
        self.acknowledged += count
        if seconds > self.worst_s:
            self.worst_s, self.worst_of = seconds, name

    def failed(self, error: Exception) -> None:
        """Note an error that a writer saw."""
        self.errors[f"{type(error).__name__}: {str(error)[:160]}"] += 1


class Writer:
    """Appends until told to stop; `acknowledged` holds the ids in their order.

    Args:
        pause_s: the most seconds between two appends.
        chance: draws pauses and batches.
    """

    def __init__(
        self,
        session: Any,
        prefix: str,
        ledger: Ledger,
        *,
        chance: random.Random | None = None,
        pause_s: float = 0.0,
        text: str = "Hello",
    ) -> None:
        self.acknowledged: list[str] = []
        self._session, self.prefix, self._ledger = session, prefix, ledger
        self._chance, self._pause_s, self._text = chance, pause_s, text
        self._stop = False
        self._asked_at: float | None = None
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while not self._stop:
            count = 1
            if self._chance is not None and self._chance.random() < 0.1:
                count = self._chance.randint(2, BATCH_MAX)
            ids = [f"{self.prefix}{number + i}" for i in range(count)]
            number += count
            await self._append(ids)
            self.acknowledged += ids
            if self._chance is not None and self._pause_s:
                await asyncio.sleep(self._chance.random() * self._pause_s)

    async def _append(self, ids: list[str]) -> None:
        messages: list[Any] = [
            {"id": one, "role": "user", "parts": [{"type": "text", "text": self._text}]}
            for one in ids
        ]
        self._asked_at = began = time.monotonic()
        while True:
            try:
                if len(messages) == 1:
                    await self._session.append_message(messages[0])
                else:
                    await self._session.append_messages(messages)
                break
            except Exception as error:
                self._ledger.failed(error)
                await asyncio.sleep(RETRY_S)
        self._asked_at = None
        self._ledger.note(self.prefix, len(ids), time.monotonic() - began)

    @property
    def waits_s(self) -> float:
        """Seconds since it asked for what is not acknowledged yet."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    async def came_to(self, count: int, within_s: float = 60.0) -> None:
        """Wait until so many more messages were acknowledged."""
        wanted = len(self.acknowledged) + count
        deadline = time.monotonic() + within_s
        while len(self.acknowledged) < wanted:
            if self.task.done():
                self.task.result()
            assert time.monotonic() < deadline, f"{self.prefix}: no {count} appends: {vars(self)}"
            await asyncio.sleep(0.01)

    async def stop(self, within_s: float = 120.0) -> bool:
        """Stop after the append under way; says whether that one came to its end."""
        self._stop = True
        done, _ = await asyncio.wait([self.task], timeout=within_s)
        if not done:
            self.task.cancel()
            await asyncio.wait([self.task])
            return False
        self.task.result()
        return True


def compare(stored: list[str], writers: list[Writer]) -> dict[str, list[str]]:
    """Hold what is stored against what was acknowledged; returns kind -> ids, empty when right.

    `lost` were acknowledged and are not there, `twice` are there more than once, `order` stand
    before what their writer wrote earlier, `foreign` nobody wrote.
    """
    wrong: dict[str, list[str]] = {}
    counts = Counter(stored)
    place = {name: index for index, name in enumerate(stored)}
    wrong["twice"] = [name for name, count in counts.items() if count > 1]
    wrong["lost"] = [n for w in writers for n in w.acknowledged if n not in place]
    wrong["order"] = []
    for writer in writers:
        held = [name for name in writer.acknowledged if name in place]
        wrong["order"] += [
            late for early, late in itertools.pairwise(held) if place[early] > place[late]
        ]
    prefixes = tuple(writer.prefix for writer in writers)
    wrong["foreign"] = [name for name in stored if not name.startswith(prefixes)]
    return {kind: ids for kind, ids in wrong.items() if ids}
