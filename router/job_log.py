"""The rows of jobs in the directory's file: what was begun, for what, and what became of it.

A job's moves are noted one by one as they end, so a router that starts anew knows what is done
and what failed; what is left to do it finds in the directory itself. Nothing is counted twice:
counts are those of the rows.

What it does not do: run anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sessions_actor.codec import dumps, loads
from sessions_actor.names import check_name
from sessions_actor.storage import Storage
from sessions_actor.transfer import TableDigest

from .models import JobKind, MigrationReport
from .through import made

# Jobs that have ended and are still told of.
ENDED_KEPT: Final = 50
# Reports of single moves that a job's own report holds.
REPORTS_MAX: Final = 10_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
  id TEXT PRIMARY KEY NOT NULL,
  kind TEXT NOT NULL,
  node_id TEXT,
  disk_id TEXT,
  announced INTEGER NOT NULL,
  standing INTEGER NOT NULL,
  state TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  ended_at INTEGER,
  error TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS job_moves (
  job_id TEXT NOT NULL,
  name BLOB NOT NULL,
  moved INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  detail TEXT,
  PRIMARY KEY (job_id, name)
) WITHOUT ROWID;
"""
_COLUMNS = "id, kind, node_id, disk_id, announced, standing, state, started_at, ended_at, error"


class JobState(StrEnum):
    """What a job has come to."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Job:
    """One row. `node_id` and `disk_id` are those of a drain; times are in ms.

    `announced` says that Ray announced the node's end, and nobody asked for it besides;
    `standing` that the node takes nothing new on its account.
    """

    id: str
    kind: JobKind
    node_id: str | None
    disk_id: str | None
    announced: bool
    standing: bool
    state: JobState
    started_at: int
    ended_at: int | None
    error: str | None


class Counts(NamedTuple):
    """How many conversations a job moved, how many it could not, and the bytes it copied."""

    moved: int
    failed: int
    bytes: int


class JobLog:
    """The jobs of one directory.

    Methods that write return once the change is durable; a replica that is late is not waited for,
    since work goes on from what the directory itself says. Reads that are told wait, see `durable`.
    """

    def __init__(self, storage: Storage, now_ms: Callable[[], int]) -> None:
        self._storage, self._now_ms = storage, now_ms
        storage.sql.exec(_SCHEMA)

    # ------------------------------------------------------------------------------- reads

    def get(self, job_id: str) -> Job | None:
        """Return a job."""
        return next(iter(self._jobs("id = ?", job_id)), None)

    def all(self) -> list[Job]:
        """Return every job that is still told of, in the order of their beginning."""
        return self._jobs("true")

    def running(self, kind: JobKind | None = None, node_id: str | None = None) -> list[Job]:
        """Return the jobs that have not ended, of one kind and for one node where given."""
        return self._jobs(
            f"state = '{JobState.RUNNING}' AND kind = coalesce(?, kind)"
            " AND (? IS NULL OR node_id = ?)",
            kind,
            node_id,
            node_id,
        )

    def standing(self, node_id: str | None = None) -> list[Job]:
        """Return the drains on whose account nodes, or one node, take nothing new."""
        return self._jobs("standing AND node_id = coalesce(?, node_id)", node_id)

    def _jobs(self, where: str, *bindings: Any) -> list[Job]:
        rows = self._storage.fetch(
            f"SELECT {_COLUMNS} FROM jobs WHERE {where} ORDER BY started_at, id", bindings
        )
        return [
            Job(id, kind, node, disk, bool(announced), bool(standing), JobState(state), *rest)
            for id, kind, node, disk, announced, standing, state, *rest in rows
        ]

    def counts(self, job_id: str) -> Counts:
        """Count a job's moves."""
        row = self._storage.fetch(
            "SELECT coalesce(sum(moved), 0), coalesce(sum(NOT moved), 0), coalesce(sum(bytes), 0)"
            " FROM job_moves WHERE job_id = ?",
            (job_id,),
        )[0]
        return Counts(*row)

    def names(self, job_id: str) -> set[str]:
        """Return the conversations that a job has been through with."""
        rows = self._storage.fetch("SELECT name FROM job_moves WHERE job_id = ?", (job_id,))
        return {row[0].decode() for row in rows}

    def failed(self, job_id: str) -> dict[str, str]:
        """Return what a job could not move, and why."""
        rows = self._storage.fetch(
            "SELECT name, detail FROM job_moves WHERE job_id = ? AND NOT moved ORDER BY name",
            (job_id,),
        )
        return {name.decode(): reason for name, reason in rows}

    def reports(self, job_id: str) -> list[MigrationReport]:
        """Return the reports of a job's copies, at most `REPORTS_MAX`, in the order of names."""
        rows = self._storage.fetch(
            "SELECT detail FROM job_moves WHERE job_id = ? AND moved AND detail IS NOT NULL"
            " ORDER BY name LIMIT ?",
            (job_id, REPORTS_MAX),
        )
        return [_report(loads(row[0])) for row in rows]

    async def durable(self) -> None:
        """Wait until everything that a read may have seen is durable."""
        await self._storage.durable()

    # ------------------------------------------------------------------------------ writes

    async def begin(
        self,
        job_id: str,
        kind: JobKind,
        node_id: str | None = None,
        disk_id: str | None = None,
        *,
        announced: bool = False,
        alive: Collection[str] = (),
    ) -> Job:
        """Note a job that begins; an ended one of the same id is forgotten, so are old ones.

        Args: `alive` names the nodes that are there: a drain on whose account one of them takes
            nothing new is kept however old it is.
        """

        def op() -> None:
            self._forget(job_id)
            self._storage.write(
                f"INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, '{JobState.RUNNING}', ?, NULL, NULL)",
                (
                    job_id,
                    kind,
                    node_id,
                    disk_id,
                    announced,
                    node_id is not None,
                    self._now_ms(),
                ),
            )
            for job in [one for one in reversed(self.all()) if one.ended_at][ENDED_KEPT:]:
                if not (job.standing and job.node_id in alive):
                    self._forget(job.id)

        await self._change(op)
        job = self.get(job_id)
        assert job is not None
        return job

    async def _change(self, op: Callable[[], object]) -> None:
        await made(self._storage.submit(op))

    def _forget(self, job_id: str) -> None:
        for table, key in (("jobs", "id"), ("job_moves", "job_id")):
            self._storage.write(f"DELETE FROM {table} WHERE {key} = ?", (job_id,))

    async def moved(self, job_id: str, name: str, report: MigrationReport | None) -> None:
        """Note a conversation that is where it should be; the report is that of its copy."""
        detail = None if report is None else dumps(asdict(report)).decode()
        await self._note(job_id, name, True, 0 if report is None else report.bytes, detail)

    async def could_not(self, job_id: str, name: str, reason: str) -> None:
        """Note a conversation that stays where it is."""
        await self._note(job_id, name, False, 0, reason)

    async def _note(
        self, job_id: str, name: str, moved: bool, size: int, detail: str | None
    ) -> None:
        row = (job_id, check_name(name), moved, size, detail)
        await self._change(
            lambda: self._storage.write("INSERT OR REPLACE INTO job_moves VALUES (?,?,?,?,?)", row)
        )

    async def end(self, job_id: str, state: JobState, error: str | None = None) -> bool:
        """Note that a job has ended; says whether it had not before, else it stays as it is."""
        ended = False

        def op() -> None:
            nonlocal ended
            before = self.get(job_id)
            ended = before is not None and before.state is JobState.RUNNING
            if ended:
                self._storage.write(
                    "UPDATE jobs SET state = ?, ended_at = ?, error = ? WHERE id = ?",
                    (state, self._now_ms(), error, job_id),
                )

        await self._change(op)
        return ended

    async def own(self, job_id: str, *, standing: bool = True) -> None:
        """Note that a drain is no longer there on account of a notice."""
        await self._change(
            lambda: self._storage.write(
                "UPDATE jobs SET announced = 0, standing = ? WHERE id = ?", (standing, job_id)
            )
        )

    async def learn_disk(self, job_id: str, disk_id: str) -> None:
        """Note which disk the node of a drain mounts."""
        await self._change(
            lambda: self._storage.write(
                "UPDATE jobs SET disk_id = ? WHERE id = ?", (disk_id, job_id)
            )
        )

    async def open(self, node_id: str) -> None:
        """Note that a node takes conversations again."""
        await self._change(
            lambda: self._storage.write(
                "UPDATE jobs SET standing = 0 WHERE node_id = ?", (node_id,)
            )
        )


def _report(fields: dict[str, Any]) -> MigrationReport:
    tables = {name: TableDigest(**digest) for name, digest in fields.pop("tables").items()}
    return MigrationReport(tables=tables, **fields)
