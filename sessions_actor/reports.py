"""What an actor tells of its conversation: to the metrics, and events to the logs.

One function per thing that happens; whoever calls it spends a line on it and no decision. Here
stand the levels, the limits on how often the same is logged, and which method counts as what.

What it does not do: raise, wait, or look at what a conversation holds.
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Final, Protocol

from . import meters, wire
from .errors import MigratingError, SessionsActorError, StaleEpochError
from .lifecycle import LifecycleEvent, LifecycleEvents
from .logs import log
from .replica import Replica
from .storage import Storage
from .telemetry import LABEL_SETS_MAX, OTHER, Counter

# The same error of the same method is logged once in this time, with how many were left out.
SAME_ERROR_S: Final = 1.0
ERROR_KINDS_MAX: Final = 256
# A conversation is reported once when it has used so much of its quota.
QUOTA_NEARLY_FULL: Final = 0.9
# The disk is looked at every so many rounds.
DISK_ROUNDS: Final = 4

_OUTCOMES: Final = {
    wire.OK: "ok", wire.ERROR: "error", wire.CUT: "cut", wire.WAITING: "waiting"
}  # fmt: skip
_OWN: Final = frozenset({wire.CALL, "compact"})
_ACCESS: Final = {
    method: "own" if method in _OWN else "write" if method in wire.WRITES else "read"
    for method in wire.METHODS
}
# A method of a handle only is written with a mark; in metrics and logs its plain name stands.
_NAMES: Final = {method: method.lstrip("#") for method in wire.METHODS}

# What tells others of trouble; every other event of a lifecycle is only counted.
_TROUBLE: Final = (":error", ":incomplete", ":failed")


class Watched(Protocol):
    """What is looked at each round: an activation that serves."""

    name: str
    epoch: int
    storage: Storage

    @property
    def pending(self) -> int: ...
    @property
    def replica(self) -> Replica | None: ...


def call_ended(method: str, tag: int, seconds: float) -> None:
    """Note a call that was carried out. Cost: half a microsecond."""
    if Counter.recording:
        cell, series = _cells.get((method, tag)) or _open_cells(method, tag)
        cell[0] += 1
        series[bisect_left(_BOUNDS, seconds)] += 1
        series[-1] += seconds


_cells: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
_BOUNDS: Final = meters.CALL_SECONDS.bounds


def _open_cells(method: str, tag: int) -> tuple[list[float], list[float]]:
    found = (
        meters.CALLS.cell(_NAMES.get(method, OTHER), _OUTCOMES[tag]),
        meters.CALL_SECONDS.series(_ACCESS.get(method, "read")),
    )
    if method in _NAMES:  # anything else may be of any number
        _cells[method, tag] = found
    return found


class _Limiter:
    """Lets the same thing pass once in a while, and says how often it came meanwhile."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def passes(self, key: tuple[str, str]) -> int | None:
        """Return how many were left out before this one, or None to leave it out."""
        now = time.monotonic()
        until, missed = self._seen.get(key, (0.0, 0))
        if now < until:
            self._seen[key] = (until, missed + 1)
            return None
        if len(self._seen) >= ERROR_KINDS_MAX:
            self._seen.clear()
        self._seen[key] = (now + SAME_ERROR_S, 0)
        return missed


_limiter = _Limiter()


def call_failed(name: str, epoch: int, method: str, error: BaseException) -> None:
    """Note an error that the caller is given."""
    kind = type(error).__name__
    meters.ERRORS.inc(kind)
    plain = _NAMES.get(method, OTHER)
    missed = _limiter.passes((plain, kind))
    if missed is not None:
        # Who presents an old epoch, or meets a seal, comes again: that is no trouble.
        routine = isinstance(error, StaleEpochError | MigratingError)
        log(
            logging.DEBUG if routine else logging.WARNING,
            "call.failed",
            conversation=name,
            epoch=epoch,
            method=plain,
            error=error,
            suppressed=missed or None,
        )


def refused(name: str, epoch: int, error: BaseException, count: int) -> None:
    """Note calls that were turned away before they began."""
    if count > 1:
        meters.ERRORS.inc(type(error).__name__, by=count - 1)
    call_failed(name, epoch, "", error)


def gate_broken(name: str, epoch: int, error: SessionsActorError) -> None:
    """Note that an activation can acknowledge nothing more, and why."""
    fenced = isinstance(error, StaleEpochError)
    if fenced:
        meters.FENCED.inc()
    log(
        logging.WARNING if fenced else logging.ERROR,
        "conversation.fenced" if fenced else "gate.broken",
        conversation=name,
        epoch=epoch,
        error=error,
    )


def lease_ended(name: str, epoch: int, term: int) -> None:
    """Note that a node's term was ended while it was bound in it: nothing more counts."""
    meters.FENCED.inc()
    log(
        logging.WARNING,
        "conversation.fenced",
        conversation=name,
        epoch=epoch,
        term=term,
        reason="lease",
    )


def lease_missing(name: str, epoch: int, term: int) -> None:
    """Note that a call was not answered, or cut short, because the node holds no lease now."""
    missed = _limiter.passes((name, "lease"))
    if missed is not None:
        log(
            logging.WARNING,
            "lease.missing",
            conversation=name,
            epoch=epoch,
            term=term,
            suppressed=missed or None,
        )


def start_failed(name: str, epoch: int, error: BaseException) -> None:
    """Note that a conversation could not be opened."""
    routine = isinstance(error, StaleEpochError)
    log(
        logging.INFO if routine else logging.ERROR,
        "conversation.open_failed",
        conversation=name,
        epoch=epoch,
        error=error,
    )


def end_failed(name: str, epoch: int, error: BaseException) -> None:
    """Note that a conversation's disposal, or its last commit, failed."""
    log(logging.ERROR, "conversation.close_failed", conversation=name, epoch=epoch, error=error)


def watch(activation: Watched, events: LifecycleEvents | None) -> Callable[[], None]:
    """Report an activation's lifecycle events and gauges until what is returned is called."""
    name, epoch = activation.name, activation.epoch

    quiet: dict[tuple[str, str], list[float]] = {}

    def hear(event: LifecycleEvent) -> None:
        what = event.source, event.type
        cell = quiet.get(what)
        if cell is None:
            cell = meters.EVENTS.cell(*what)
            if event.type.endswith(_TROUBLE):
                report(event)
            elif len(quiet) < LABEL_SETS_MAX:
                quiet[what] = cell
        cell[0] += Counter.recording

    def report(event: LifecycleEvent) -> None:
        # The payload may quote what the conversation holds: it stays here.
        error = event.payload.get("error")
        log(
            logging.WARNING,
            "lifecycle.event",
            conversation=name,
            epoch=epoch,
            source=event.source,
            type=event.type,
            error=error if isinstance(error, BaseException) else None,
        )

    end_hearing = events.subscribe(hear) if events is not None else lambda: None
    end_looking = meters.REGISTRY.before_drain(_Look(activation))

    def end() -> None:
        end_hearing()
        end_looking()
        for gauge in (
            meters.PENDING_CALLS,
            meters.CONVERSATION_BYTES,
            meters.QUOTA_RATIO,
            meters.REPLICATION_LAG_SECONDS,
        ):
            gauge.clear()

    return end


class _Look:
    """Sets the gauges of an activation."""

    def __init__(self, activation: Watched) -> None:
        self._activation, self._warned, self._rounds = activation, False, 0

    def __call__(self) -> None:
        storage = self._activation.storage
        meters.PENDING_CALLS.set(self._activation.pending)
        replica = self._activation.replica
        if replica is not None:
            meters.REPLICATION_LAG_SECONDS.set(replica.lag_s)
        if storage.broken is None:
            used = storage.used_bytes
            ratio = used / storage.quota_bytes
            meters.CONVERSATION_BYTES.set(used)
            meters.QUOTA_RATIO.set(ratio)
            self._warn(used, storage.quota_bytes, ratio)
        if self._rounds % DISK_ROUNDS == 0:
            look_at_disk(os.path.dirname(storage.path))
        self._rounds += 1

    def _warn(self, used: int, quota: int, ratio: float) -> None:
        nearly_full = ratio >= QUOTA_NEARLY_FULL
        if nearly_full and not self._warned:
            log(
                logging.WARNING,
                "quota.nearly_full",
                conversation=self._activation.name,
                epoch=self._activation.epoch,
                bytes=used,
                quota_bytes=quota,
            )
        self._warned = nearly_full


def look_at_disk(folder: str | os.PathLike[str]) -> None:
    """Set the gauges of the file system that holds a folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return
    meters.DISK_FREE_BYTES.set(found.f_bavail * found.f_frsize)
    meters.DISK_SIZE_BYTES.set(found.f_blocks * found.f_frsize)
