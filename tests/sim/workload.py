"""What people do in a simulated deployment: write, read, follow, migrate, drain, delete.

All of it goes through real handles and the real client. Each act checks what it was told against
the model; errors are allowed only of the kinds that a caller must expect from what went wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any

import ray.exceptions

from router.client import Client
from sessions_actor.errors import (
    ConversationNotFoundError,
    MigrationFailedError,
    NoCapacityError,
    OutputGateBrokenError,
    RoutingError,
    StorageError,
)

from .model import Model, Record, Violation, message_of

if TYPE_CHECKING:
    from .machines import Process
    from .world import World

# What a caller may meet while things go wrong; nothing of it without a fault.
_EXPECTED = (TimeoutError, NoCapacityError, StorageError, OutputGateBrokenError, RoutingError)
_ADMIN_EXPECTED = (
    *_EXPECTED,
    MigrationFailedError,
    ray.exceptions.RayActorError,
    ray.exceptions.TaskCancelledError,
)


class Gone(Exception):
    """Something is lost with its disk: whoever used it stops."""


class People:
    """One client process and what its people do."""

    def __init__(self, world: World, process: Process, client: Client, rng: Random) -> None:
        self.world, self.process, self.client, self.rng = world, process, client, rng

    async def pause(self, mean_s: float) -> None:
        """Think for a while."""
        await asyncio.sleep(self.rng.expovariate(1 / mean_s))

    def meet(self, error: BaseException, allowed: tuple[type, ...] = _EXPECTED) -> None:
        """Accept an error, or not.

        Raises: Violation; Gone when it may be for good.
        """
        if not isinstance(error, allowed) or not self.world.troubled or self.world.is_long_calm:
            raise Violation(f"a caller was told {type(error).__name__}: {error}") from error
        self.world.trace("told", type(error).__name__)
        if any(disk.lost for disk in self.world.disks):
            raise Gone from error

    # -------------------------------------------------------------------------------- writers

    async def write(self, model: Model, writer: str, acts: int, pause_s: float) -> None:
        """Write as one writer: append, several at once, update, delete."""
        session = self.client.get(model.name).session(model.session)
        mine: list[str] = []
        for _ in range(acts):
            await self.pause(pause_s)
            draw = self.rng.random()
            if draw < 0.62 or not mine:
                await self._append(session, model, writer, mine, 1)
            elif draw < 0.72:
                await self._append(session, model, writer, mine, self.rng.randint(2, 4))
            elif draw < 0.80:
                await asyncio.gather(
                    *(self._append(session, model, writer, mine, 1) for _ in range(2))
                )
            else:
                key = self.rng.choice(mine)
                record = model.records[key]
                if not record.open or len(record.may) != 1:
                    continue
                if draw < 0.92:
                    text = f"{record.may[0]}+{self.rng.randint(0, 9)}"
                    await self._change(
                        model, key, text, lambda key=key, text=text: session.update_message(
                            message_of(key, text)
                        )
                    )  # fmt: skip
                else:
                    mine.remove(key)
                    await self._change(
                        model, key, None, lambda key=key: session.delete_messages([key])
                    )

    async def _append(
        self, session: Any, model: Model, writer: str, mine: list[str], count: int
    ) -> None:
        messages = []
        for _ in range(count):
            number = sum(1 for record in model.records.values() if record.writer == writer)
            key = f"{writer}.{number}"
            text = "x" * self.rng.choice((1, 20, 300, 3000))
            record = model.records[key] = Record(writer, number)
            record.begin(text)
            messages.append(message_of(key, text))
        records = [model.records[message["id"]] for message in messages]
        try:
            if count == 1:
                results = [await session.append_message(messages[0])]
            else:
                results = await session.append_messages(messages)
        except Exception as error:
            for record in records:
                record.abandon()
            self.meet(error)
            return
        for message, record, result in zip(messages, records, results, strict=True):
            if result.message["id"] != message["id"]:
                raise Violation(f"{message['id']} was answered with {result.message['id']}")
            record.acknowledge()
            mine.append(message["id"])

    async def _change(
        self, model: Model, key: str, text: str | None, ask: Callable[[], Awaitable[Any]]
    ) -> None:
        record = model.records[key]
        record.begin(text)
        try:
            result = await ask()
        except Exception as error:
            record.abandon()
            self.meet(error)
            return
        if text is not None and result is None:
            raise Violation(f"{model.name}: {key} was acknowledged, an update finds nothing")
        record.acknowledge()

    # -------------------------------------------------------------------------------- readers

    async def read(self, model: Model, acts: int, pause_s: float) -> None:
        """Read: whole histories both ways, stored rows, single messages."""
        session = self.client.get(model.name).session(model.session)
        for _ in range(acts):
            await self.pause(pause_s)
            known = model.known()
            draw = self.rng.random()
            try:
                if draw < 0.45:
                    back = draw < 0.15
                    seen = [m async for m in session.history(newest_first=back)]
                    model.check_read(known, seen[::-1] if back else seen, whole=True)
                elif draw < 0.6:
                    rows = [row.message async for row in session.history_rows()]
                    model.check_read(known, rows, whole=True)
                elif known:
                    one = self.rng.choice(known)
                    found = await session.get_message(one[0])
                    model.check_read([one], [found] if found else [], whole=True)
            except (Violation, Gone):
                raise
            except Exception as error:
                self.meet(error)

    async def follow(self, model: Model) -> None:
        """Follow the change feed: nothing that was acknowledged is missing unless it says so."""
        stream = self.client.get(model.name).session(model.session).changes()
        try:
            await stream.begun()
        except Exception as error:
            self.meet(error)
            return
        before = set(model.records)
        feed = Feed(model, before)
        self.world.feeds.append(feed)
        try:
            async for event in stream:
                feed.take(event)
        except Violation:
            raise
        except Exception as error:
            feed.gaps += 1
            self.meet(error)

    # ------------------------------------------------------------------------- one's own life

    async def use_alone(self, name: str, writer: str, lives: int) -> None:
        """Make a conversation, use it, delete it, again and again; nobody else writes to it."""
        for life in range(lives):
            model = Model(name)
            self.world.models[name] = model
            await self.write(model, f"{writer}.{life}", self.rng.randint(1, 4), 0.1)
            if not model.records or not all(record.open for record in model.records.values()):
                # A write that nobody was told about may still come: the name is used no more.
                del self.world.models[name]
                return
            if life == lives - 1:
                return
            try:
                existed = await self.client.delete(name)
            except Exception as error:
                del self.world.models[name]
                self.meet(error, _ADMIN_EXPECTED)
                return
            if not existed and not self.world.troubled:
                raise Violation(f"{name}: deleted, and it was said that it was not there")

    # ----------------------------------------------------------------------------- operations

    async def operate(self, names: list[str], acts: int, pause_s: float) -> None:
        """Do what an operator does, at random."""
        for _ in range(acts):
            await self.pause(pause_s)
            name = self.rng.choice(names)
            act = self.rng.choice(
                (self._migrate, self._migrate, self._migrate, self._hibernate, self._info)
            )
            try:
                await act(name)
            except ConversationNotFoundError:
                pass
            except (Violation, Gone):
                raise
            except NoCapacityError:
                pass  # a node with one place has none for a source and its target
            except ValueError as error:
                if "no live node" not in str(error):
                    raise Violation(f"an operator was told {error}") from error
            except Exception as error:
                self.meet(error, _ADMIN_EXPECTED)

    async def _migrate(self, name: str) -> None:
        node = self.rng.choice([None, *(n.node_id for n in self.world.cluster.live_nodes())])
        report = await self.client.migrate(name, node)
        self.world.moves += 1
        if report.name != name:
            raise Violation(f"a migration of {name} reports {report.name}")

    async def _hibernate(self, name: str) -> None:
        await self.client.hibernate(name)

    async def _info(self, name: str) -> None:
        info = await self.client.info(name)
        if info.name != name:
            raise Violation(f"asked about {name}, told about {info.name}")

    async def drain(self, start_s: float) -> None:
        """Drain a node, and give it work again."""
        await asyncio.sleep(start_s)
        nodes = self.world.cluster.live_nodes()
        node = self.rng.choice(nodes).node_id
        try:
            await self.client.drain(node)
            self.world.moves += 1
        except (ValueError, NoCapacityError):
            pass  # it is gone, or alone
        except Exception as error:
            self.meet(error, _ADMIN_EXPECTED)
        try:
            await self.client.undrain(node)
        except Exception as error:
            self.meet(error, _ADMIN_EXPECTED)


class Feed:
    """What a follower of the change feed heard."""

    def __init__(self, model: Model, before: set[str]) -> None:
        self.model, self._before = model, before
        self.heard: set[str] = set()
        self.gaps = 0

    def take(self, event: Any) -> None:
        """Hear one event."""
        if event.type == "gap":
            self.gaps += 1
        elif event.message is not None:
            self.heard.add(event.message["id"])

    @property
    def told(self) -> bool:
        """Whether all was heard, or that something is missing."""
        return self.gaps > 0 or self._missing() is None

    def check(self) -> None:
        """Say whether everything acknowledged since its beginning was heard.

        Raises: Violation.
        """
        if not self.told:
            raise Violation(f"{self.model.name}: the change feed lacks {self._missing()}")

    def _missing(self) -> str | None:
        for key, _, _, text in self.model.known():
            if key not in self._before and text is not None and key not in self.heard:
                return key
        return None
