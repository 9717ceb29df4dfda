"""Compose, `ray up` and systemd, run: the commands that their files hold, on pods."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterator

import pytest

from . import shapes
from .pods import DATA, Network, Pod
from .running import TOKEN, compose_pod, loose, sessions, talk, until

# A whole cluster starts here, on a machine that may be busy.
pytestmark = pytest.mark.timeout(900)


class Compose:
    """The services of the compose file, one pod each."""

    def __init__(self, network: Network) -> None:
        self.services = shapes.compose()["services"]
        # Those that wait for another come after it.
        order = sorted(self.services, key=lambda name: "depends_on" in self.services[name])
        self.pods = {name: compose_pod(network, name, self.services[name]) for name in order}

    def hook(self, name: str, kind: str) -> None:
        """Run a service's hooks."""
        for one in self.services[name][kind]:
            self.pods[name].check(one["command"])

    def healthy(self, name: str) -> bool:
        """Run a service's health check."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        return self.pods[name].run(command).returncode == 0


def test_compose_serves_and_empties_a_node_that_stops(network: Network) -> None:
    compose = Compose(network)
    compose.hook("head", "post_start")
    for name in compose.services:
        until(lambda name=name: compose.healthy(name), f"{name} is healthy")
    head = compose.pods["head"]
    until(lambda: len(sessions(head, "status")["nodes"]) == 2, "both nodes take part")
    names = [f"c/{number}" for number in range(4)]
    talk(head, names, "m1")
    compose.hook("node-a", "pre_stop")
    nodes = {node["address"]: node for node in sessions(head, "status")["nodes"]}
    drained = nodes[compose.pods["node-a"].ip]
    assert (drained["state"], drained["active"]) == ("draining", 0)
    compose.pods["node-a"].end()
    assert all(one["ids"] == ["m1"] for one in talk(head, names).values())
    for pod in compose.pods.values():
        assert loose(pod.folder / "data/sessions") == []
        pod.end()


def _ray_up_pod(network: Network, name: str) -> Pod:
    """Make a machine as `ray up` finds it: a user with the token and what `file_mounts` brought."""
    # Machines have one path for their data, each with a disk of its own there.
    pod = network.pod(name, {"SESSIONS_HOME": f"{DATA}/sessions-data"})
    home = pod.folder / "home"
    for target, source in shapes.ray_up()["file_mounts"].items():
        path = home / target.removeprefix("~/")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if target.endswith("auth_token"):
            path.write_text(TOKEN)
        elif (shapes.ROOT / source).is_file():
            path.write_text((shapes.ROOT / source).read_text())
    return pod


def test_ray_up_starts_a_head_that_serves_and_a_worker_that_joins(network: Network) -> None:
    config = shapes.ray_up()
    # The autoscaler would reach the workers by SSH; here they are started by hand.
    managed = re.compile(r" --autoscaling-config=\S+")
    head, worker = _ray_up_pod(network, "up-head"), _ray_up_pod(network, "up-worker")
    for line in config["head_start_ray_commands"]:
        head.check(["bash", "-c", managed.sub("", line)])
    for line in config["worker_start_ray_commands"]:
        worker.check(["bash", "-c", line], RAY_HEAD_IP=head.ip)
    command = ". ~/sessions.env && sessions-actor --address auto append alice Hello"
    until(lambda: head.run(["bash", "-c", command]).returncode == 0, "the worker takes it")
    data = worker.folder / "data/sessions-data"
    assert list(data.rglob("*.sqlite")), "on the worker's disk"
    assert loose(data) == []
    for pod in (head, worker):
        pod.end()


def test_the_unit_serves_one_machine_and_ends_in_order(network: Network) -> None:
    lines = shapes.systemd_unit()
    here = [(key, value.replace("/var/lib/", "/srv/")) for _, key, value in lines]
    env = dict(value.split("=", 1) for key, value in here if key == "Environment")
    env = {name: value.replace("%d", "/run/secrets") for name, value in env.items()}
    pod = network.pod("unit", env)
    (pod.folder / "secrets/ray-token").write_text(TOKEN)
    (pod.folder / "data/sessions-actor").mkdir(mode=0o700)
    (umask,) = [value for key, value in here if key == "UMask"]
    (before,) = [value for key, value in here if key == "ExecStartPre"]
    (start,) = [value for key, value in here if key == "ExecStart"]
    pod.check(["sh", "-c", f"umask {umask}; {before}"])
    _, *words = shlex.split(start)
    served = ["sh", "-c", f'umask {umask}; exec "$@"', "-", "sessions-actor", *words]
    for life in range(2):
        service = pod.start(served)
        until(lambda life=life: pod.log().count("serving at") > life, "it serves")
        # No address: it is found by its storage folder.
        pod.check(["sessions-actor", "append", "alice", f"Hello {life}"])
        (main,) = _processes(pod, words)
        pod.check(["kill", f"-{signal.SIGTERM.value}", str(main)])
        assert service.wait(60) == 0, "within TimeoutStopSec"
        assert not _processes(pod, ["raylet"]), "it ended what it started"
    root = pod.folder / "data/sessions-actor/data"
    assert not list(root.rglob("*.sqlite-wal")), "everything hibernated: each file is whole"
    assert not (root / "deployment.json").exists()
    assert loose(root) == []
    pod.end()


def _processes(pod: Pod, words: list[str]) -> list[int]:
    """Return the pod's processes whose command line holds these words in a row."""
    listed = pod.check(["ps", "-eo", "pid=,args="]).splitlines()
    found = []
    for line in listed:
        number, _, command = line.strip().partition(" ")
        if " ".join(words) in command and "sh -c" not in command and "ps -eo" not in command:
            found.append(int(number))
    return found


@pytest.fixture(autouse=True)
def _takes_long(long_run: bool) -> None:
    if not long_run:
        pytest.skip("a cluster for each way to deploy takes minutes: --long")


@pytest.fixture(autouse=True)
def _shows_logs(
    _takes_long: None, network: Network, request: pytest.FixtureRequest
) -> Iterator[None]:
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        for pod in network.pods:
            print(f"== {pod.name}\n{pod.log()[-2000:]}")
