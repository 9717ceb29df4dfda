"""The Kubernetes manifests' commands, run: start, probes, token, jobs, drain, the head's end.

Pods are namespaces of this machine (see pods.py); KubeRay's part is played by running.py. The
tests of this module share one cluster and follow each other.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from . import shapes
from .pods import Network, Pod
from .running import TOKEN, get, healthy, kuberay_pod, loose, sessions, talk, until

# A whole cluster starts here, on a machine that may be busy.
pytestmark = pytest.mark.timeout(900)

BUILD = "overlays/volumes"
WORKERS = ("a", "b")
NAMES = [f"customer/{number}" for number in range(4)]


class Kubernetes:
    """The cluster that the manifests describe, its third worker left out."""

    def __init__(self, network: Network) -> None:
        self.network = network
        found = shapes.cluster(BUILD)
        (self._config,) = [one for one in shapes.objects(BUILD) if one["kind"] == "ConfigMap"]
        self.groups = {name: (group, container) for name, group, container in shapes.groups(found)}
        self.pods: dict[str, Pod] = {}

    def start(self, name: str) -> Pod:
        """Start a pod and what its container starts with."""
        group, container = self.groups[name]
        self.pods[name] = kuberay_pod(self.network, name, group, container, self._config)
        hook = container["lifecycle"].get("postStart")
        if hook is not None:
            self.pods[name].check(hook["exec"]["command"], timeout_s=330)
        return self.pods[name]

    def healthy(self, name: str, asker: str = "head") -> bool:
        """Say whether every probe of a pod passes."""
        return healthy(self.pods[asker], self.pods[name], self.groups[name][1])

    def pre_stop(self, name: str) -> str:
        """Run a pod's hook, as its deletion does first."""
        command = self.groups[name][1]["lifecycle"]["preStop"]["exec"]["command"]
        return self.pods[name].check(command, timeout_s=300)

    def nodes(self) -> set[str]:
        """Return the pods that take conversations."""
        names = {pod.ip: name for name, pod in self.pods.items()}
        found = sessions(self.pods["head"], "status")["nodes"]
        return {names[node["address"]] for node in found if node["state"] == "alive"}

    def node_ids(self) -> set[str]:
        """Return Ray's ids of the nodes that take conversations."""
        found = sessions(self.pods["head"], "status")["nodes"]
        return {node["node_id"] for node in found if node["state"] == "alive"}

    def held(self, name: str) -> int:
        """Count the conversations on a pod's disk."""
        return len(
            list((self.pods[name].folder / "data/sessions").rglob("conversations/**/*.sqlite"))
        )


@pytest.fixture(scope="module")
def kubernetes(network: Network) -> Iterator[Kubernetes]:
    """The cluster, started."""
    found = Kubernetes(network)
    try:
        found.start("head")
        for name in WORKERS:
            found.start(name)
        for name in found.pods:
            until(lambda name=name: found.healthy(name), f"{name} is healthy")
        until(lambda: found.nodes() == set(WORKERS), "the workers take conversations, no one else")
        yield found
    except BaseException:
        for pod in found.pods.values():
            print(f"== {pod.name}\n{pod.log()[-2000:]}")
        raise


def ids(found: dict[str, Any]) -> set[tuple[str, ...]]:
    return {tuple(one["ids"]) for one in found.values()}


def test_conversations_live_on_the_workers_alone(kubernetes: Kubernetes) -> None:
    assert ids(talk(kubernetes.pods["a"], NAMES, "m1")) == {("m1",)}
    assert kubernetes.held("head") == 0
    assert kubernetes.held("a") + kubernetes.held("b") == len(NAMES)


def test_whoever_lacks_the_token_is_refused_at_once_and_told_why(kubernetes: Kubernetes) -> None:
    pod = kubernetes.pods["a"]
    command = ["sessions-actor", "--address", "head:6379", "ls"]
    for env in (
        {"RAY_AUTH_TOKEN": "a-wrong-one-" + "0" * 20},
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "", "RAY_AUTH_TOKEN": ""},
    ):
        done = pod.run(command, timeout_s=60, **env)
        assert done.returncode == 6, done
        assert "refuses this token" in done.stderr
        assert TOKEN not in done.stderr + done.stdout
    dashboard = f"http://{kubernetes.pods['head'].ip}:8265/api/version"
    assert get(pod, dashboard) == "401"


def test_prometheus_needs_no_token(long_run: bool, kubernetes: Kubernetes) -> None:
    if not long_run:
        pytest.skip("--long")
    metrics = f"http://{kubernetes.pods['head'].ip}:8080/metrics"
    assert get(kubernetes.pods["a"], metrics).startswith("200 ")


def test_a_token_in_the_users_home_is_found(kubernetes: Kubernetes) -> None:
    pod = kubernetes.pods["a"]
    (pod.folder / "home/.ray").mkdir(mode=0o700)
    (pod.folder / "home/.ray/auth_token").write_text(TOKEN)
    command = ["env", "-u", "RAY_AUTH_MODE", "-u", "RAY_AUTH_TOKEN", "sessions-actor"]
    said = pod.check([*command, "--address", "head:6379", "ls"])
    assert NAMES[0] in said


@pytest.mark.parametrize("file", shapes.JOBS, ids=lambda file: file.name)
def test_a_job_runs_as_kuberays_submitter_runs_it(kubernetes: Kubernetes, file: Any) -> None:
    entrypoint = yaml.safe_load(file.read_text())["spec"]["entrypoint"]
    submit = ["ray", "job", "submit", "--address", "http://head:8265", "--"]
    submitter = kubernetes.pods["b"]
    said = submitter.check([*submit, *shlex.split(entrypoint)], timeout_s=300)
    assert "succeeded" in said
    if "migrate" in entrypoint:
        assert said.count('"source_node_id"') == len(NAMES)
    if "verify" in entrypoint:
        assert f'"sound":{len(NAMES)}' in said


def test_a_pod_that_is_to_go_is_emptied_and_a_new_one_takes_part(
    long_run: bool, kubernetes: Kubernetes
) -> None:
    if not long_run:
        pytest.skip("pods are replaced with --long")
    kubernetes.pre_stop("a")
    assert kubernetes.nodes() == {"b"}
    until(lambda: kubernetes.held("a") == 0, "nothing is left on its disk")
    assert kubernetes.held("b") == len(NAMES)
    kubernetes.pods["a"].end()
    assert ids(talk(kubernetes.pods["b"], NAMES, "m2")) == {("m1", "m2")}
    kubernetes.start("a")
    until(lambda: kubernetes.healthy("a"), "the new pod is healthy")
    until(lambda: "a" in kubernetes.nodes(), "it takes conversations")


def test_the_heads_pod_is_replaced_and_the_workers_stay(
    long_run: bool, kubernetes: Kubernetes
) -> None:
    if not long_run:
        pytest.skip("pods are replaced with --long")
    pod = kubernetes.pods["b"]
    before = kubernetes.node_ids()
    kubernetes.pods["head"].end()
    kubernetes.start("head")
    until(lambda: kubernetes.healthy("head", asker="b"), "the new head is healthy")
    assert ids(talk(pod, NAMES, "m3")) == {("m1", "m2", "m3")}
    assert kubernetes.node_ids() == before, "no worker had to start again"


def test_a_head_is_healthy_for_commands_too(kubernetes: Kubernetes) -> None:
    found = sessions(kubernetes.pods["head"], "health", "--router", "--timeout", "30")
    assert found["raylet"] == found["gcs"] == "success"
    assert "2 nodes" in found["router"]


def test_nothing_on_the_disks_is_open_to_others(kubernetes: Kubernetes) -> None:
    for pod in kubernetes.pods.values():
        root = pod.folder / "data/sessions"
        assert any(root.rglob("*"))
        assert loose(root) == []
