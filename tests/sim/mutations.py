"""Deliberately broken builds: each takes one safeguard away, and some seed has to notice.

A mutant that no seed notices says that the faults or the invariants of the simulation are too weak
to vouch for that safeguard; so each is run until it is caught, within a bounded number of seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import router.relocation
import router.router
from router.directory import Directory
from router.leases import Leases
from router.locks import NameLocks
from router.relocation import Relocation
from router.router import Router
from router.take_over import TakeOver
from router.upkeep import Upkeep
from sessions_actor import transfer_steps
from sessions_actor.actor import ConversationActor
from sessions_actor.gate import Gate
from sessions_actor.hosted import Hosted
from sessions_actor.lease import NodeLease

from .run import run_seeds
from .seams import SimLock
from .world import Outcome

Patch = tuple[Any, str, Any]


class Mutant(NamedTuple):
    """A broken build: what it lacks, what it replaces, within how many seeds it is caught."""

    name: str
    lacks: str
    patches: Callable[[], list[Patch]]
    caught_by: int = 0
    """A seed that caught it once: tried first. Others follow when histories have changed."""
    seeds: int = 600


def find(mutant: Mutant, seeds: Iterable[int] | None = None) -> Outcome | None:
    """Run seeds on a broken build until one fails; None when none does."""
    wanted = (mutant.caught_by, *range(mutant.seeds)) if seeds is None else seeds
    with broken(mutant), contextlib.closing(run_seeds(wanted)) as outcomes:
        return next((outcome for outcome in outcomes if outcome.failure is not None), None)


@contextlib.contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    """Break this process's build."""
    patches = mutant.patches()
    kept = [(owner, name, vars(owner)[name]) for owner, name, _ in patches]
    try:
        for owner, name, value in patches:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


# ------------------------------------------------------------------------------ what they lack


def _no_epoch_check() -> list[Patch]:
    async def serve(self: Hosted, epoch: int, parts: Any) -> Any:
        return await _serve(self, self.epoch, parts)

    def hosts(self: ConversationActor, name: str, epoch: int) -> bool:
        return self._hosted is not None and self._hosted.name == name

    _serve = Hosted.serve
    return [(Hosted, "serve", serve), (ConversationActor, "_hosts", hosts)]


def _no_name_check() -> list[Patch]:
    def hosts(self: ConversationActor, name: str, epoch: int) -> bool:
        return self._hosted is not None and self._hosted.epoch == epoch

    return [(ConversationActor, "_hosts", hosts)]


def _no_lease_check() -> list[Patch]:
    return [
        (NodeLease, "holds", lambda self, term: True),
        (NodeLease, "ended", lambda self, term: False),
    ]


def _no_fence() -> list[Patch]:
    return [(Gate, "_check_epoch", lambda self, presented: None)]


def _no_term_check() -> list[Patch]:
    def holds(self: NodeLease, term: int) -> bool:
        return self.left_s > 0

    return [(NodeLease, "holds", holds), (NodeLease, "ended", lambda self, term: False)]


def _no_waiting_for_leases() -> list[Patch]:
    return [(Leases, "left_s", lambda self, node_id: 0.0), (Leases, "end_term", _end_term)]


def _end_term(self: Leases, node_id: str) -> int:
    term = self._terms[node_id] = self.term(node_id) + 1
    return term


def _no_lease_of_a_predecessor() -> list[Patch]:
    def expect(self: Leases, node_id: str, term: int) -> None:
        self._terms[node_id] = term

    return [(Leases, "expect", expect)]


def _no_seal() -> list[Patch]:
    async def seal(self: Hosted, patience_s: float) -> None:
        return None

    return [(Hosted, "seal", seal)]


def _no_unseal() -> list[Patch]:
    return [(Hosted, "unseal", lambda self: None)]


def _no_output_gate() -> list[Patch]:
    async def durable(self: Gate) -> None:
        self.check()
        if self._open:
            self._end_turn()

    def end_turn(self: Gate) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            loop.call_later(0.05, self._flush_in_loop)

    return [(Gate, "durable", durable), (Gate, "_end_turn", end_turn)]


def _no_file_lock() -> list[Patch]:
    return [(SimLock, "acquire", lambda self: None)]


def _no_name_lock() -> list[Patch]:
    @contextlib.asynccontextmanager
    async def hold(self: NameLocks, name: str) -> Any:
        yield

    return [(NameLocks, "hold", hold)]


def _no_new_epoch() -> list[Patch]:
    async def activate(self: Directory, name: str, epoch: int, owner: Any) -> Any:
        found = await _activate(self, name, epoch, owner)
        if found is None:
            return None
        return await self._change(
            "UPDATE conversations SET epoch = ? WHERE name = ?", (epoch, name.encode())
        )

    _activate = Directory.activate
    return [(Directory, "activate", activate)]


def _reused_generations() -> list[Patch]:
    def number(self: Directory) -> int:
        # As it was once: the number of the next epoch, which a migration given up had used too.
        rows = self._storage.fetch("SELECT max(epoch) FROM conversations")
        return int(rows[0][0] or 0) + 1

    return [(Directory, "_next_generation", number)]


_last_step = transfer_steps.last_step


async def forgetful_last_step(site: Any) -> Any:
    """Send nothing of what changed since the snapshot."""
    await _last_step(site)
    return [], {}, transfer_steps.digest_rows(site.storage.connection, {})


def _no_last_changes() -> list[Patch]:
    return [(transfer_steps, "last_step", forgetful_last_step)]


def _no_reconciling() -> list[Patch]:
    async def reconcile(self: Upkeep) -> None:
        return None

    return [(Upkeep, "_reconcile", reconcile)]


def _no_look_at_an_owner() -> list[Patch]:
    async def is_alive(self: Router, serving: Any) -> bool:
        return True

    return [(Router, "is_alive", is_alive)]


def _death_taken_for_granted() -> list[Patch]:
    async def succeed(self: TakeOver, entry: Any) -> None:
        await self.settle(entry)

    return [(TakeOver, "succeed", succeed)]


def _late_copies_are_failures() -> list[Patch]:
    async def made(change: Any) -> Any:
        return await change

    return [(router.router, "made", made), (router.relocation, "made", made)]


def _unconfirmed_switches_are_undone() -> list[Patch]:
    async def confirmed(self: Relocation, name: str) -> None:
        return None

    return [(Relocation, "_confirmed", confirmed)]


MUTANTS = (
    Mutant("epoch", "an actor does not look at the epoch of a call", _no_epoch_check, 3),
    Mutant("name", "an actor does not look at the name in a call", _no_name_check),
    Mutant("lease", "an actor acknowledges without a lease", _no_lease_check, 509),
    Mutant("seal", "the source of a migration goes on writing", _no_seal, 5),
    Mutant("unseal", "a migration given up leaves its source sealed", _no_unseal, 150),
    Mutant("gate", "a write is acknowledged before it is durable", _no_output_gate, 20),
    Mutant("file-lock", "files and the directory are not locked", _no_file_lock, 91),
    Mutant("name-lock", "acts on one conversation are not kept in order", _no_name_lock, 21),
    Mutant("new-epoch", "an activation does not raise the epoch", _no_new_epoch),
    Mutant("generation", "a migration uses the file of one given up", _reused_generations, 39),
    Mutant("last-changes", "what changed last in a live copy is not sent", _no_last_changes, 289),
    Mutant("reconcile", "a router that starts does not look at what is there", _no_reconciling, 3),
    Mutant("late-copy", "a change whose copy is late is taken for not made",
           _late_copies_are_failures, 331),
    Mutant("late-switch", "a switch that waits for its copy is undone",
           _unconfirmed_switches_are_undone, 295),
    Mutant("is-alive", "the router takes an owner for alive unseen", _no_look_at_an_owner, 87),
)  # fmt: skip

# No seed has caught these yet: another safeguard holds where they fail, or it takes more seeds.
OPEN = (
    Mutant("fence", "a file does not keep out who was bound in an earlier epoch", _no_fence),
    Mutant("term", "a lease counts in whatever term an actor was bound", _no_term_check),
    Mutant("outlast", "the router does not wait for a lease to run out", _no_waiting_for_leases),
    Mutant("expect", "a router does not reckon with its predecessor's leases",
           _no_lease_of_a_predecessor),
    Mutant("succeed", "an owner that nobody saw end is followed at once", _death_taken_for_granted),
)  # fmt: skip
