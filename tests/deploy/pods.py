"""Machines of a small network, made of Linux namespaces: where the manifests' commands run.

A pod has a network, a process table, a host name, `/tmp/ray`, `/dev/shm`, `/run`, a home and a
data folder of its own, and shares the rest of the file system, so that this checkout's programs
are there. That is what a container gives a command; no image and no daemon is needed. It takes
root and iproute2.

It does not limit memory or CPU.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = "/srv"
NETWORK = "10.231.77"

_SETUP = """
set -e
mount --make-rprivate /
mkdir -p /tmp/ray
mount --bind "$POD/ray" /tmp/ray
mount -t tmpfs shm /dev/shm
mount --bind "$POD/data" {data}
mount -t tmpfs run /run
mkdir -m 0755 /run/secrets
mount --bind "$POD/secrets" /run/secrets
mount --bind "$POD/hosts" /etc/hosts
mount --bind "$POD/resolv.conf" /etc/resolv.conf
hostname "$NAME"
ip link set lo up
echo ready
exec sleep infinity
"""


def why_not() -> str | None:
    """Say why pods cannot be made here; None when they can."""
    if sys.platform != "linux":
        return "pods are made of Linux namespaces"
    if os.geteuid() != 0:
        return "making namespaces takes root"
    missing = [tool for tool in ("ip", "unshare", "nsenter", "mount") if not shutil.which(tool)]
    if missing:
        return f"not installed: {', '.join(missing)}"
    probe = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
    if subprocess.run(probe, capture_output=True).returncode:
        return "this machine allows no new namespaces"
    return None


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@dataclass
class Pod:
    """One machine; `env` is what its containers' environment adds."""

    name: str
    ip: str
    folder: Path
    env: dict[str, str]
    holder: subprocess.Popen[str]
    init: int
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        """Return a command's environment: little of ours, the pod's, `more`."""
        base = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": str(ROOT),
        }
        return base | self.env | (more or {})

    def _enter(self) -> list[str]:
        return ["nsenter", "-t", str(self.init), "-n", "-m", "-p", "-u", "--"]

    def start(self, command: list[str], **env: str) -> subprocess.Popen[bytes]:
        """Start a command that goes on; its output is in the pod's `log`."""
        log = (self.folder / "log").open("ab")
        process = subprocess.Popen(
            [*self._enter(), *command],
            env=self.environment(env), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        log.close()
        self.started.append(process)
        return process

    def run(
        self, command: list[str], *, timeout_s: float = 240, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [*self._enter(), *command],
            env=self.environment(env), cwd="/", stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip

    def check(self, command: list[str], *, timeout_s: float = 240, **env: str) -> str:
        """Run a command that must succeed; returns what it printed."""
        done = self.run(command, timeout_s=timeout_s, **env)
        assert done.returncode == 0, f"{self.name}: {command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def log(self) -> str:
        """Return what the commands that were started have printed."""
        file = self.folder / "log"
        return file.read_text(errors="replace") if self.started else ""

    def end(self) -> None:
        """End every process at once, as a machine that loses its power."""
        if self.holder.poll() is None:
            self.holder.kill()
        self.holder.wait()
        for process in self.started:
            process.wait()


class Network:
    """Pods that reach each other, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pods: list[Pod] = []
        self._count = 0
        self._switch = subprocess.Popen(
            [
                "unshare", "--net", "--kill-child", "--fork",
                "sh", "-c", "echo ready; exec sleep infinity",
            ],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._switch.stdout is not None
        assert self._switch.stdout.readline() == "ready\n"
        self._switch_init = _child(self._switch.pid)
        self._in_switch("ip", "link", "add", "br0", "type", "bridge")
        self._in_switch("ip", "link", "set", "br0", "up")

    @property
    def pods(self) -> list[Pod]:
        """Every pod that was made."""
        return list(self._pods)

    def _in_switch(self, *command: str) -> None:
        _run("nsenter", "-t", str(self._switch_init), "-n", "--", *command)

    def pod(self, name: str, env: dict[str, str]) -> Pod:
        """Make a pod, which reaches those that were there before it by their names.

        A pod of a name that was there before takes its disk and address, as one behind a service.
        """
        before = [pod for pod in self._pods if pod.name == name]
        assert all(pod.holder.poll() is not None for pod in before), f"{name} is still there"
        self._count += 1
        ip = before[-1].ip if before else f"{NETWORK}.{10 + self._count}"
        home = self._folder / name
        for part in ("ray", "data", "home", "secrets"):
            (home / part).mkdir(parents=True, exist_ok=True)
        shutil.rmtree(home / "ray")  # a container's /tmp does not outlive it
        (home / "ray").mkdir()
        names = {pod.name: pod.ip for pod in self._pods} | {name: ip, "localhost": "127.0.0.1"}
        (home / "hosts").write_text("".join(f"{ip} {name}\n" for name, ip in names.items()))
        # gRPC asks for more than addresses; nothing listens there, so it has its answer at once.
        (home / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        holder = subprocess.Popen(
            [
                "unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child",
                "--mount-proc", "sh", "-c", _SETUP.format(data=DATA),
            ],
            env={"PATH": os.environ["PATH"], "POD": str(home), "NAME": name},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        pod = Pod(name, ip, home, env, holder, _child(holder.pid))
        self._pods.append(pod)
        cable = f"pod{self._count}"
        self._in_switch(
            "ip", "link", "add", cable, "type", "veth",
            "peer", "name", "eth0", "netns", str(pod.init),
        )  # fmt: skip
        self._in_switch("ip", "link", "set", cable, "master", "br0", "up")
        inside = ["nsenter", "-t", str(pod.init), "-n", "--", "ip"]
        _run(*inside, "addr", "add", f"{pod.ip}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")
        # Ray finds a machine's own address by asking for the way out; nothing is sent there.
        _run(*inside, "route", "add", "default", "dev", "eth0")
        return pod

    def close(self) -> None:
        """End every pod."""
        for pod in self._pods:
            pod.end()
        self._switch.kill()
        self._switch.wait()


def _child(pid: int) -> int:
    """Return the process that `unshare --fork` made."""
    file = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, IndexError):
            return int(file.read_text().split()[0])
        time.sleep(0.01)
    raise AssertionError("unshare made no process")
