"""What runs containers does with a manifest's commands: KubeRay's part, compose's part, probes."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .kustomize import Object
from .pods import Network, Pod

TOKEN = "a-token-of-these-tests-0123456789abcdef"  # pragma: allowlist secret
AGENT_PORT = 52365

_GET = """
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=5)
    print(answer.status, answer.read().decode()[:200].replace(chr(10), " "))
except urllib.error.HTTPError as error:
    print(error.code)
"""


def until(condition: Callable[[], Any], what: str, within_s: float = 240.0) -> Any:
    """Wait for a condition to hold; returns its first true value."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.1)


def get(pod: Pod, url: str) -> str:
    """Fetch a page from within a pod: its status and the beginning of it; "" without an answer."""
    return pod.run([sys.executable, "-c", _GET, url]).stdout.strip()


def healthy(asker: Pod, pod: Pod, container: Object) -> bool:
    """Probe a pod from another one, as the machine's kubelet does: every probe it declares."""
    pages = {json.dumps(container[f"{kind}Probe"]["httpGet"]) for kind in ("liveness", "readiness")}
    for page in map(json.loads, pages):
        if not get(asker, f"http://{pod.ip}:{page['port']}{page['path']}").startswith("200 "):
            return False
    return True


def sessions(pod: Pod, *words: str, timeout_s: float = 240, **env: str) -> Any:
    """Run a command of ours in a pod that must succeed; returns its JSON."""
    command = ["sessions-actor", "--address", "auto", "--json", *words]
    return json.loads(pod.check(command, timeout_s=timeout_s, **env))


_TALK = """
import json, sys
from router import connect_sync
names, message_id = json.loads(sys.argv[1]), sys.argv[2]
found = {}
with connect_sync("auto") as conversations:
    for name in names:
        session = conversations.get(name).session()
        if message_id:
            session.append_message({"id": message_id, "role": "user", "parts": []})
        info = conversations.info(name)
        ids = [message["id"] for message in session.history()]
        found[name] = {"ids": ids, "epoch": info.epoch, "pid": info.pid}
print(json.dumps(found))
"""


def talk(pod: Pod, names: list[str], message_id: str = "") -> dict[str, Any]:
    """Append a message to each conversation, if an id is given, and read it whole.

    Returns: for each name its messages' ids, its epoch and its owner's pid.
    """
    said = pod.check([sys.executable, "-c", _TALK, json.dumps(names), message_id])
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def kuberay_pod(
    network: Network, name: str, group: Object, container: Object, config: Object
) -> Pod:
    """Make a pod as KubeRay does: the group's parameters become `ray start`, the token is set."""
    is_head = name == "head"
    env = dict(config["data"]) | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    env["RAY_ADDRESS"] = "127.0.0.1:6379" if is_head else "head:6379"
    if is_head:
        env |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": "/srv/gcs"}
    pod = network.pod(name, env)
    limits = container["resources"]["limits"]
    parameters = {
        "num-cpus": container["resources"]["requests"]["cpu"],
        "memory": str(int(limits["memory"].removesuffix("Gi")) << 30),
        "dashboard-agent-listen-port": str(AGENT_PORT),
        "metrics-export-port": "8080",
    } | group["rayStartParams"]
    options = [f"--{key}={value}" for key, value in parameters.items()]
    start = ["--head", "--port=6379"] if is_head else ["--address=head:6379"]
    # Whatever the umask of an image: what we write is private all the same.
    restarting(pod, ["ray", "start", *start, *options, "--block"], umask="000")
    return pod


def restarting(pod: Pod, command: list[str], *, umask: str = "022") -> None:
    """Start what a container runs; when it ends, all of it ends and starts again."""
    loop = f'umask {umask}; while true; do "$@"; ray stop --force; done'
    pod.start(["sh", "-c", loop, "-", *command])


def compose_pod(network: Network, name: str, service: Object) -> Pod:
    """Make a pod as compose does: environment, secrets, command."""
    pod = network.pod(name, dict(service["environment"]))
    for secret in service["secrets"]:
        (pod.folder / "secrets" / secret).write_text(TOKEN)
    restarting(pod, service["command"])
    return pod


def loose(root: Path) -> list[str]:
    """List what other users of the machine could open below a folder of ours."""
    found = []
    for path in (root, *sorted(root.rglob("*"))):
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        if mode & ~(0o700 if path.is_dir() else 0o600):
            found.append(f"{path}: {mode:o}")
    return found
