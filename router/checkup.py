"""What a deployment is examined for: facts that each node tells of itself, and what they mean.

`examine` runs on a node, in a Ray task, and only reads (a probe file is written and removed).
`judge` is pure: facts in, findings out, each with advice. A `fault` needs someone to act, a
`warning` someone to know; `ok` says that a check was made.
"""

import asyncio
import os
import platform
import resource
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

from sessions_actor.database_file import private
from sessions_actor.errors import StorageError
from sessions_actor.limits import MIB
from sessions_actor.replica import Durability

from .models import ConversationInfo, NodeInfo
from .render import clean, count

Level = Literal["ok", "warning", "fault"]

# Files looked at for their modes: enough to see a wrong umask, few enough for a large disk.
FILES_LOOKED_AT: Final = 1000
PRIVATE_MODE: Final = 0o077
FREE_FAULT_BYTES: Final = 512 * MIB
FREE_WARNING_SHARE: Final = 0.10
WRITE_WARNING_S: Final = 0.5
SKEW_WARNING_S: Final = 1.0
SKEW_FAULT_S: Final = 60.0
OPEN_FILES_MIN: Final = 4096
LAG_WARNING_S: Final = 10.0

assert SKEW_WARNING_S < SKEW_FAULT_S


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node, or the process that asks, says of itself."""

    node_id: str
    host: str
    versions: dict[str, str]
    token_auth: bool
    clock_s: float
    """Its wall clock when it answered."""
    open_files_max: int
    storage_root: str = ""
    storage_error: str = ""
    """Why nothing can be written there; "" when it can."""
    write_s: float = 0.0
    """How long a durable write of a small file took."""
    free_bytes: int = 0
    total_bytes: int = 0
    open_to_others: tuple[str, ...] = ()
    """Some files and folders that others than the owner may read."""
    lease_left_s: float | None = None
    replica_error: str = ""
    """What is wrong with its replication, if it is to have any."""
    skew_s: float = 0.0
    """How far its clock is from the asker's, as far as the time of the call tells."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: where, what, and what to do."""

    level: Level
    check: str
    where: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything that is judged."""

    here: Facts
    nodes: tuple[Facts, ...]
    silent: dict[str, str] = field(default_factory=dict)
    """Nodes that did not answer, and why."""
    known: tuple[NodeInfo, ...] = ()
    active: tuple[ConversationInfo, ...] = ()
    disks: dict[str, int] = field(default_factory=dict)
    """How many conversations lie on each disk."""
    behind: tuple[int, float] = (0, 0.0)
    """How many sleeping conversations' replicas lack something, and for how many seconds."""
    gone: tuple[str, ...] = ()
    """What is told of nodes that have left the cluster."""
    durability: Durability = Durability.LOCAL


# ------------------------------------------------------------------------------------- on a node


def versions() -> dict[str, str]:
    """Return the versions that matter here."""
    import apsw

    found = {"Python": platform.python_version(), "SQLite": apsw.sqlite_lib_version()}
    for name, package in (("Ray", "ray"), ("sessions-actor", "sessions-actor")):
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def about_here(node_id: str) -> Facts:
    """Return the facts of this process, without its storage."""
    return Facts(
        node_id=node_id,
        host=socket.gethostname(),
        versions=versions(),
        token_auth=os.environ.get("RAY_AUTH_MODE") == "token",
        clock_s=time.time(),
        open_files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    )


def examine(
    node_id: str,
    storage_root: str,
    namespace: str,
    routers: Sequence[str],
    durability: Durability,
) -> Facts:
    """Return a node's facts; runs there. The least of its leases counts, one from each router."""
    from sessions_actor.disk import root_here
    from sessions_actor.lease import lease_file, open_lease

    root = root_here(storage_root)
    facts = about_here(node_id)
    error, took = _probe(root)
    leases = [lease_file(namespace, router, node_id) for router in routers]
    left = min((open_lease(one).left_s if one.exists() else 0.0 for one in leases), default=None)
    facts = replace(
        facts, storage_root=str(root), storage_error=error, write_s=took, lease_left_s=left
    )
    if root.is_dir():
        usage = shutil.disk_usage(root)
        facts = replace(
            facts,
            free_bytes=usage.free,
            total_bytes=usage.total,
            open_to_others=tuple(_open_to_others(root)),
        )
        if durability is not Durability.LOCAL:
            facts = replace(facts, replica_error=_replication(root))
    return replace(facts, clock_s=time.time())


def _probe(root: Path) -> tuple[str, float]:
    """Write a small file durably and remove it; returns why not, and the seconds it took."""
    if not root.exists():
        return "", 0.0  # made by the first conversation there
    probe = root / f".doctor-{uuid.uuid4().hex}"
    began = time.perf_counter()
    try:
        with open(probe, "xb", buffering=0, opener=private) as file:
            file.write(b"probe")
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or type(error).__name__, 0.0
    finally:
        probe.unlink(missing_ok=True)
    return "", time.perf_counter() - began


def _replication(root: Path) -> str:
    """Return what is wrong with a disk's replication; "" when its daemon answers."""
    from sessions_actor.replica import socket_path

    from .replication.daemon import answers
    from .replication.engine import find_program

    try:
        find_program()
    except StorageError as error:
        return str(error)
    return "" if asyncio.run(answers(socket_path(root))) else "its daemon does not answer"


def _open_to_others(root: Path) -> Iterable[str]:
    """Yield a few places below a root that others may read."""
    shown = 0
    for number, path in enumerate([root, *_some_below(root)]):
        try:
            is_open = path.lstat().st_mode & PRIVATE_MODE and not path.is_symlink()
        except OSError:
            continue  # gone meanwhile
        if is_open and shown < 3:
            shown += 1
            yield str(path if number else root)


def _some_below(root: Path) -> Iterable[Path]:
    seen = 0
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            yield Path(folder, name)
            seen += 1
            if seen >= FILES_LOOKED_AT:
                return


# ------------------------------------------------------------------------------------- judgement


def judge(deployment: Deployment) -> list[Finding]:
    """Return what is found, in the order of the checks."""
    checks = (
        _judge_nodes,
        _judge_versions,
        _judge_auth,
        _judge_storage,
        _judge_disks,
        _judge_modes,
        _judge_space,
        _judge_leases,
        _judge_clocks,
        _judge_limits,
        _judge_actors,
        _judge_capacity,
        _judge_replicas,
    )
    return [finding for check in checks for finding in check(deployment)]


def _name(facts: Facts) -> str:
    return f"{facts.node_id[:8]} ({facts.host})"


def _or_ok(found: list[Finding], check: str, text: str) -> list[Finding]:
    return found or [Finding("ok", check, "", text)]


def _judge_nodes(deployment: Deployment) -> list[Finding]:
    found = [
        Finding(
            "fault",
            "nodes",
            node_id[:8],
            f"does not answer: {reason}",
            "look at its raylet and its load; what it served is taken over once its lease ran out",
        )
        for node_id, reason in deployment.silent.items()
    ]
    told = f"{len(deployment.nodes)} answered"
    if deployment.gone:
        told += f"; {len(deployment.gone)} left the cluster, last {clean(deployment.gone[-1], 200)}"
    return [*found, Finding("ok", "nodes", "", told)]


def _judge_versions(deployment: Deployment) -> list[Finding]:
    found = []
    for name, own in deployment.here.versions.items():
        others = {node.versions.get(name, "none") for node in deployment.nodes} - {own}
        for other in sorted(others):
            places = [_name(node) for node in deployment.nodes if node.versions.get(name) == other]
            level: Level = "fault" if name in ("Ray", "sessions-actor") else "warning"
            text = f"{name} is {other} there and {own} here"
            advice = "install one version everywhere; drain a node before it is replaced"
            found.append(Finding(level, "versions", ", ".join(places), text, advice))
    told = ", ".join(f"{name} {own}" for name, own in deployment.here.versions.items())
    return _or_ok(found, "versions", told)


def _judge_auth(deployment: Deployment) -> list[Finding]:
    bare = [_name(node) for node in deployment.nodes if not node.token_auth]
    if not bare:
        return [Finding("ok", "authentication", "", "Ray asks for a token")]
    text = "Ray asks for no token: who reaches its ports runs code there"
    advice = "set RAY_AUTH_MODE=token on every node and client, or keep the ports from others"
    return [Finding("warning", "authentication", ", ".join(bare), text, advice)]


def _judge_storage(deployment: Deployment) -> list[Finding]:
    found = []
    for node in deployment.nodes:
        if node.storage_error:
            text = f"{node.storage_root} cannot be written: {node.storage_error}"
            advice = "check its owner, its mode and its mount; conversations there take no writes"
            found.append(Finding("fault", "storage", _name(node), text, advice))
        elif node.write_s > WRITE_WARNING_S:
            text = f"a durable write took {node.write_s:.1f} s"
            advice = "the disk is slow or busy: every acknowledged write waits for it"
            found.append(Finding("warning", "storage", _name(node), text, advice))
    slowest = max((node.write_s for node in deployment.nodes), default=0.0)
    return _or_ok(found, "storage", f"writable; a durable write takes {slowest * 1000:.0f} ms")


def _judge_disks(deployment: Deployment) -> list[Finding]:
    """Find conversations whose disk left with its node."""
    here = {node.disk_id for node in deployment.known}
    lost = {disk: number for disk, number in deployment.disks.items() if disk not in here}
    number = count(sum(lost.values()), "conversation")
    if not lost:
        held = count(sum(deployment.disks.values()), "conversation")
        told = f"each of {held} lies on the disk of a live node"
        return [Finding("ok", "disks", "", told)]
    where = ", ".join(sorted(disk[:8] for disk in lost))
    if None in here:
        text = f"{number} on a disk that no live node has shown yet"
        advice = "ask again in a minute: a node shows its disk when its agent runs"
        return [Finding("warning", "disks", where, text, advice)]
    text = f"{number} on a disk that no live node has"
    if deployment.durability is Durability.LOCAL:
        advice = "they cannot be reached: bring that node, or its disk, back"
        return [Finding("fault", "disks", where, text, advice)]
    advice = "they come back from their replicas when they are used next"
    return [Finding("warning", "disks", where, text, advice)]


def _judge_modes(deployment: Deployment) -> list[Finding]:
    found = [
        Finding(
            "warning",
            "file modes",
            _name(node),
            f"others may read {', '.join(node.open_to_others)}",
            "chmod -R go= the storage root",
        )
        for node in deployment.nodes
        if node.open_to_others
    ]
    return _or_ok(found, "file modes", "storage is its owner's alone")


def _judge_space(deployment: Deployment) -> list[Finding]:
    found = []
    for node in deployment.nodes:
        if not node.total_bytes:
            continue
        share = node.free_bytes / node.total_bytes
        text = f"{node.free_bytes // MIB:,} MiB free ({share:.0%})"
        if node.free_bytes < FREE_FAULT_BYTES:
            advice = "make room or drain the node now: on a full disk every write fails"
            found.append(Finding("fault", "disk space", _name(node), text, advice))
        elif share < FREE_WARNING_SHARE:
            advice = "make room, or move conversations to another node"
            found.append(Finding("warning", "disk space", _name(node), text, advice))
    least = min((node.free_bytes for node in deployment.nodes if node.total_bytes), default=None)
    told = "not in use yet" if least is None else f"at least {least // MIB:,} MiB free"
    return _or_ok(found, "disk space", told)


def _judge_leases(deployment: Deployment) -> list[Finding]:
    serving = {node.node_id for node in deployment.known if node.active}
    found = []
    for node in deployment.nodes:
        if node.lease_left_s or node.node_id not in serving:
            continue
        text = "holds no lease: its conversations acknowledge nothing"
        advice = "its agent does not reach the router: check the network, then the router's log"
        found.append(Finding("fault", "leases", _name(node), text, advice))
    held = sum(bool(node.lease_left_s) for node in deployment.nodes)
    return _or_ok(found, "leases", f"{held} of {len(deployment.nodes)} nodes hold one")


def _judge_clocks(deployment: Deployment) -> list[Finding]:
    found = []
    for node in deployment.nodes:
        skew = abs(node.skew_s)
        if skew > SKEW_WARNING_S:
            level: Level = "fault" if skew > SKEW_FAULT_S else "warning"
            text = f"its clock is {node.skew_s:+.1f} s from this machine's"
            advice = "synchronise it: times of messages and restore points are wall clock times"
            found.append(Finding(level, "clocks", _name(node), text, advice))
    most = max((abs(node.skew_s) for node in deployment.nodes), default=0.0)
    return _or_ok(found, "clocks", f"within {most:.1f} s of this machine's")


def _judge_limits(deployment: Deployment) -> list[Finding]:
    found = [
        Finding(
            "warning",
            "open files",
            _name(node),
            f"a process may open {node.open_files_max:,} files",
            f"raise the hard limit to {OPEN_FILES_MIN:,} or more (ulimit -Hn, LimitNOFILE)",
        )
        for node in deployment.nodes
        if 0 <= node.open_files_max < OPEN_FILES_MIN
    ]
    return _or_ok(found, "open files", f"{OPEN_FILES_MIN:,} or more everywhere")


def _judge_actors(deployment: Deployment) -> list[Finding]:
    """Compare the directory, which says who serves, with the actors, which answer or do not."""
    alive = {node.node_id for node in deployment.known}
    lost = [info for info in deployment.active if info.node_id is not None]
    silent = [info for info in deployment.active if info.state == "active" and info.pid is None]
    stray = [info for info in lost if info.node_id not in alive]
    found = []
    for infos, text in ((silent, "silent"), (stray, "on a node that is not alive")):
        if infos:
            names = ", ".join(sorted(info.name for info in infos)[:5])
            advice = "their next call takes them over; if it does not, see the router's log"
            told = f"{count(len(infos), 'active conversation')} {text}: {names}"
            found.append(Finding("fault", "directory and actors", "", told, advice))
    answered = count(len(deployment.active), "active conversation")
    return _or_ok(found, "directory and actors", f"{answered} answered")


def _judge_capacity(deployment: Deployment) -> list[Finding]:
    full = [node for node in deployment.known if node.active >= node.max_active]
    found = [
        Finding(
            "warning",
            "capacity",
            node.node_id[:8],
            f"serves {node.active} of at most {node.max_active} conversations",
            "add a node, or raise max_active if memory allows: others wait for one to be idle",
        )
        for node in full
    ]
    found += [
        Finding(
            "warning",
            "capacity",
            node.node_id[:8],
            "is being drained: it takes no new conversations",
            "take it away, or let it serve again",
        )
        for node in deployment.known
        if node.state == "draining"
    ]
    places = sum(max(0, node.max_active - node.active) for node in deployment.known)
    return _or_ok(found, "capacity", f"{places:,} more conversations can be active at once")


def _judge_replicas(deployment: Deployment) -> list[Finding]:
    if deployment.durability is Durability.LOCAL:
        text = "off: a disk that is lost takes its conversations along"
        advice = "set durability and replica_url, or back the storage folders up"
        return [Finding("warning", "replicas", "", text, advice)]
    serving = {node.node_id for node in deployment.known if node.active}
    found = [
        Finding(
            "fault" if node.node_id in serving else "warning",
            "replicas",
            _name(node),
            node.replica_error,
            "see what Ray's log of its agent says; writes wait or go without a replica meanwhile",
        )
        for node in deployment.nodes
        if node.replica_error
    ]
    lags = {info.name: info.replica_lag_s or 0.0 for info in deployment.active}
    behind = sorted(name for name, lag_s in lags.items() if lag_s > LAG_WARNING_S)
    if behind:
        number = count(len(behind), "conversation")
        text = f"{number} more than {LAG_WARNING_S:.0f} s behind: {', '.join(behind[:5])}"
        advice = "check that the nodes reach replica_url, and the credentials there"
        found.append(Finding("fault", "replicas", "", text, advice))
    asleep, lag_s = deployment.behind
    if lag_s > LAG_WARNING_S:
        text = f"{count(asleep, 'conversation')} asleep, not wholly copied for {lag_s:.0f} s"
        advice = (
            "each is copied while it sleeps once its node and replica_url are there; after"
            " replication was turned on that takes a while"
        )
        found.append(Finding("warning", "replicas", "", text, advice))
    most = max([lag_s, *lags.values()])
    told = f"{deployment.durability.value}; at most {most:.1f} s behind"
    return _or_ok(found, "replicas", told)


def worst(findings: Sequence[Finding]) -> Level:
    """Return the gravest level found."""
    order: dict[Any, int] = {"ok": 0, "warning": 1, "fault": 2}
    return max((finding.level for finding in findings), key=order.__getitem__, default="ok")
