"""What replication costs: `python -m tests.replication.measure [--conversations N] [--seconds S]`.

Opens N conversations in one process with a daemon beside them, and prints as JSON: the time of an
append at each durability, one at a time and from 20 conversations at once, and what the daemon
takes of processor and memory, idle and busy. The replica is a folder beside the files unless
`--url` names another place.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from router.replication.daemon import Daemon, DaemonTerms
from router.replication.paths import ReplicaUrl, line_url
from sessions_actor.conversation import Conversation
from sessions_actor.open_object import Activation
from sessions_actor.replica import Durability, ReplicaSpec, socket_path

from .test_daemon import engines_of

TICKS = os.sysconf("SC_CLK_TCK")
TEXT = "x" * 700
WRITERS = 20


def message(number: int) -> Any:
    return {"id": f"m{number}", "role": "user", "parts": [{"type": "text", "text": TEXT}]}


def spread(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {
        "p50_ms": round(1000 * statistics.median(times), 2),
        "p99_ms": round(1000 * times[int(len(times) * 0.99)], 2),
        "count": len(times),
    }


class Usage:
    """A process's processor time and memory."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu, self._at = self.cpu_s(), time.monotonic()

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def read(self) -> dict[str, float]:
        """What it took since the last time."""
        cpu, now = self.cpu_s(), time.monotonic()
        percent = 100 * (cpu - self._cpu) / (now - self._at)
        self._cpu, self._at = cpu, now
        status = Path(f"/proc/{self._pid}/status").read_text()
        rss_kib = next(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")
        )
        return {"cpu_percent_of_a_core": round(percent, 1), "rss_mib": round(rss_kib / 1024, 1)}


async def appends(opened: list[Activation[Conversation]], seconds: float, at_once: int) -> Any:
    """Append for a while, from so many conversations at once; the times."""
    times: list[float] = []
    deadline = time.monotonic() + seconds

    async def write(one: Activation[Conversation]) -> None:
        number = 0
        while time.monotonic() < deadline:
            began = time.perf_counter()
            await one.host.session.append_message(message(time.monotonic_ns() + number))
            times.append(time.perf_counter() - began)
            number += 1

    await asyncio.gather(*(write(one) for one in opened[:at_once]))
    return spread(times) | {"per_second": round(len(times) / seconds)}


async def measure(root: Path, url: ReplicaUrl, conversations: int, seconds: float) -> Any:
    found: dict[str, Any] = {"conversations": conversations, "load": os.getloadavg()[0]}
    daemon = Daemon(root, DaemonTerms(7 * 86_400.0, 3600.0))
    running = asyncio.create_task(daemon.run())
    await daemon.ready(30)
    (pid,) = engines_of(root)
    usage = Usage(pid)
    for durability in Durability:
        count = conversations if durability is Durability.REPLICATED else WRITERS
        opened = []
        began = time.perf_counter()
        for number in range(count):
            name = f"{durability}-{number}"
            spec = ReplicaSpec(str(line_url(url, name, 1)), durability, 30.0, socket_path(root))
            one = Activation(
                Conversation,
                name=name,
                path=root / f"{name}.sqlite",
                replica=None if durability is Durability.LOCAL else spec,
            )
            await one.start()
            opened.append(one)
        each = (time.perf_counter() - began) / count
        result: dict[str, Any] = {"activation_ms": round(1000 * each, 2)}
        result["one_at_a_time"] = await appends(opened, seconds, 1)
        result[f"{WRITERS}_at_once"] = await appends(opened, seconds, WRITERS)
        if durability is Durability.REPLICATED:
            usage.read()
            await asyncio.sleep(seconds)
            result["daemon_idle"] = usage.read()
            result["all_at_once"] = await appends(opened, seconds, count)
            result["daemon_busy"] = usage.read()
            result["daemon_files_open"] = len(os.listdir(f"/proc/{pid}/fd"))
        found[durability.value] = result
        await asyncio.gather(*(one.close() for one in opened))
    running.cancel()
    await asyncio.wait([running])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--url")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "disk"
        root.mkdir()
        url = ReplicaUrl.parse(given.url or f"file://{folder}/far")
        found = asyncio.run(measure(root, url, given.conversations, given.seconds))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
