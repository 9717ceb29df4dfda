"""What the router tells of its decisions: to the metrics, and events to the logs.

One function per thing that happens, as `sessions_actor.reports` has them for an actor. An event
carries the conversation, its epoch and the node; series carry neither of the first two.

What it does not do: decide, wait, or raise.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Self

from sessions_actor import meters
from sessions_actor.errors import NoCapacityError
from sessions_actor.logs import log

if TYPE_CHECKING:
    from .job_log import Job
    from .router import Router, Serving

Activate = Callable[..., Awaitable["Serving"]]

_INFO, _WARNING, _ERROR = logging.INFO, logging.WARNING, logging.ERROR


def activation(work: Activate) -> Activate:
    """Report each activation that a router's method makes, with its time, or why it failed."""

    @functools.wraps(work)
    async def activate(router: Router, name: str, node_id: str | None = None) -> Serving:
        began = time.perf_counter()
        kind = "wake" if router.directory.get(name) is not None else "new"
        try:
            serving = await work(router, name, node_id)
        except Exception as error:
            _activation_failed(name, error)
            raise
        _activated(serving, kind, time.perf_counter() - began)
        return serving

    return activate


def _activated(serving: Serving, kind: str, seconds: float) -> None:
    meters.ACTIVATIONS.inc(kind)
    meters.ACTIVATION_SECONDS.observe(seconds, kind)
    log(
        _INFO,
        "conversation.activated",
        conversation=serving.name,
        epoch=serving.epoch,
        node=serving.slot.node_id,
        kind=kind,
        pid=serving.slot.pid,
        seconds=seconds,
    )


def _activation_failed(name: str, error: Exception) -> None:
    meters.ACTIVATIONS_FAILED.inc(type(error).__name__)
    log(_ERROR, "conversation.activation_failed", conversation=name, error=error)


def hibernated(serving: Serving, reason: str, file_bytes: int) -> None:
    """Note that an owner let go; `reason` is "idle", "evicted" or "asked"."""
    meters.HIBERNATIONS.inc(reason)
    log(
        _INFO,
        "conversation.hibernated",
        conversation=serving.name,
        epoch=serving.epoch,
        node=serving.slot.node_id,
        reason=reason,
        bytes=file_bytes,
    )


def owner_lost(serving: Serving) -> None:
    """Note that an owner is gone without having let go."""
    meters.OWNERS_LOST.inc()
    log(
        _WARNING,
        "conversation.owner_lost",
        conversation=serving.name,
        epoch=serving.epoch,
        node=serving.slot.node_id,
        pid=serving.slot.pid,
    )


def failed_over(name: str, epoch: int, node_id: str, disk_id: str, position: int | None) -> None:
    """Note that a conversation came back from its replica; None: there was nothing to bring."""
    log(
        _WARNING,
        "conversation.failed_over",
        conversation=name,
        epoch=epoch,
        node=node_id,
        source=disk_id,
        outcome="empty" if position is None else "restored",
    )


def deleted(name: str, epoch: int) -> None:
    """Note that a conversation was deleted."""
    log(_INFO, "conversation.deleted", conversation=name, epoch=epoch)


# ------------------------------------------------------------------------------- processes


def waited_for_actor(seconds: float) -> None:
    """Note how long someone waited until an actor was free."""
    meters.ACTOR_WAIT_SECONDS.observe(seconds)


def no_capacity(name: str, seconds: float, nodes: int) -> None:
    """Note that no actor became free in time."""
    meters.NO_CAPACITY.inc()
    error = NoCapacityError(nodes)
    log(_ERROR, "capacity.none", conversation=name, seconds=seconds, nodes=nodes, error=error)


def actor_started(node_id: str, pid: int, seconds: float) -> None:
    """Note a new actor process."""
    meters.ACTORS_STARTED.inc("ok")
    log(_INFO, "actor.started", node=node_id, pid=pid, seconds=seconds)


def actor_start_failed(node_id: str, error: BaseException) -> None:
    """Note that a node could not be given another actor process."""
    meters.ACTORS_STARTED.inc("error")
    log(_ERROR, "actor.start_failed", node=node_id, error=error)


def router_started(node_id: str) -> None:
    """Note that a router serves from now on, and since when."""
    meters.ROUTER_STARTED.set(time.time())
    log(_INFO, "router.started", node=node_id)


def router_stopped() -> None:
    """Note that a router was shut down in order."""
    log(_INFO, "router.stopped")


def router_start_failed(error: BaseException) -> None:
    """Note that a router could not start."""
    log(_ERROR, "router.start_failed", error=error)


def directory_broken(error: BaseException) -> None:
    """Note that the directory could not be written: this router ends, another opens it anew."""
    log(_ERROR, "directory.broken", error=error)


def node_gone(node_id: str, *, drained: bool) -> None:
    """Note that a node left the cluster, in order or not."""
    outcome = "drained" if drained else "lost"
    meters.NODES_GONE.inc(outcome)
    log(_WARNING, "node.gone", node=node_id, outcome=outcome)


def upkeep_failed(error: BaseException) -> None:
    """Note that a round of the router's own work failed; the next one tries again."""
    meters.ERRORS.inc(type(error).__name__)
    log(_WARNING, "upkeep.failed", error=error)


def replica_kept(name: str, error: BaseException) -> None:
    """Note that a replica which nobody needs any more could not be removed; it is tried again."""
    meters.ERRORS.inc(type(error).__name__)
    log(_WARNING, "replica.kept", conversation=name, error=error)


# ---------------------------------------------------------------------------------- leases


def lease_renewed() -> None:
    """Note that a node's lease was granted or renewed. No event: it happens all the time."""
    meters.LEASE_RENEWALS.inc("granted")


def lease_refused(node_id: str) -> None:
    """Note that a lease was refused to a node that the cluster does not know as alive."""
    meters.LEASE_RENEWALS.inc("refused")
    log(_WARNING, "lease.refused", node=node_id)


def renewal_failed(router: str, left_s: float, error: Exception) -> None:
    """Note, at a node, that a router cannot be asked for the node's lease."""
    log(_WARNING, "lease.renewal_failed", router=router, seconds=left_s, error=error)


def renewed_again(router: str) -> None:
    """Note, at a node, that its lease is renewed again."""
    log(_INFO, "lease.renewed_again", router=router)


def agent_failed(node_id: str, error: BaseException) -> None:
    """Note that the agent which renews a node's lease does not answer, or cannot be made."""
    log(_WARNING, "agent.failed", node=node_id, error=error)


def lease_absent(node_id: str, seconds: float) -> None:
    """Note that nobody asked for a node's lease for so long: its conversations answer nothing."""
    log(_ERROR, "lease.absent", node=node_id, seconds=seconds)


def lease_lapsed(node_id: str, term: int) -> None:
    """Note that a node's lease ran out and its term was ended: others take its conversations."""
    meters.LEASES_LAPSED.inc()
    log(_WARNING, "lease.lapsed", node=node_id, term=term)


# ------------------------------------------------------------------------------- migrations

SEALING: Final = "sealing"
_SWITCHED: Final = "switched"


class Migration:
    """Reports one migration, as a context: which phase it enters, how long each took, its end.

    Args: `waited_s` is how long it waited for its turn and for an actor.
    """

    running = 0

    def __init__(self, source: Serving, target_node_id: str, waited_s: float) -> None:
        self._source, self._target = source, target_node_id
        self._began = self._entered = time.perf_counter()
        self._sealed: float | None = None
        self._phase = "beginning"
        meters.MIGRATION_PHASE_SECONDS.observe(waited_s, "waiting")

    def __enter__(self) -> Self:
        self._count(+1)
        return self

    def enter(self, phase: str) -> None:
        """Note a phase that begins, or that the source's callers wait from now on (SEALING)."""
        now = time.perf_counter()
        if phase == SEALING:
            self._sealed = now
            return
        self._leave()
        self._phase = phase
        if phase == _SWITCHED and self._sealed is not None:
            meters.MIGRATION_STALL_SECONDS.observe(now - self._sealed)
        self._log(_INFO, "migration.step", phase=phase)

    def moved(self, bytes: int, messages: int) -> None:
        """Note that the target serves and the source is gone."""
        self._leave()
        meters.MIGRATIONS.inc("moved")
        meters.MIGRATED_BYTES.inc(by=bytes)
        seconds = time.perf_counter() - self._began
        self._log(_INFO, "migration.ended", seconds=seconds, bytes=bytes, messages=messages)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self._count(-1)
        if error is None:
            return
        self._leave()
        if isinstance(error, Exception):
            meters.MIGRATIONS.inc("failed")
            # The text of a failed migration quotes its cause's, which may quote a message.
            cause = error.__cause__ or error
            self._log(_ERROR, "migration.failed", phase=self._phase, error=cause)
        else:
            meters.MIGRATIONS.inc("cancelled")
            self._log(_WARNING, "migration.cancelled", phase=self._phase)

    def _leave(self) -> None:
        now = time.perf_counter()
        meters.MIGRATION_PHASE_SECONDS.observe(now - self._entered, self._phase)
        self._entered = now

    def _count(self, change: int) -> None:
        Migration.running += change
        meters.MIGRATIONS_RUNNING.set(Migration.running)

    def _log(self, level: int, event: str, **fields: Any) -> None:
        log(
            level,
            event,
            conversation=self._source.name,
            epoch=self._source.epoch,
            node=self._source.slot.node_id,
            target_node=self._target,
            **fields,
        )


def job_started(job: Job) -> None:
    """Note a job that begins, or goes on under another router."""
    log(_INFO, f"{job.kind}.started", job=job.id, node=job.node_id)


def job_ended(job: Job, state: str, moved: int, failed: int) -> None:
    """Note a job that has ended, and what stayed where it was.

    Why it failed stands in its row, for those who ask: that text may quote anything.
    """
    level = _INFO if state == "done" and not failed else _WARNING
    log(
        level,
        f"{job.kind}.ended",
        job=job.id,
        node=job.node_id,
        state=state,
        moved=moved,
        failed=failed,
    )
