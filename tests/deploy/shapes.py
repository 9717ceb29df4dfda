"""What lies in deploy/, read once: built manifests, commands, the schemas they have to fit."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from .kustomize import Object, build

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERAY = DEPLOY / "kuberay"
OVERLAYS = sorted(path.name for path in (KUBERAY / "overlays").iterdir())
BUILDS = ["base", *(f"overlays/{name}" for name in OVERLAYS)]
JOBS = sorted((KUBERAY / "jobs").glob("*.yaml"))


@functools.cache
def _built(name: str) -> str:
    return json.dumps(build(KUBERAY / name))


def objects(name: str) -> list[Object]:
    """Return the objects of `base` or `overlays/NAME`."""
    found: list[Object] = json.loads(_built(name))
    return found


def cluster(name: str) -> Object:
    """Return the one RayCluster of a build."""
    (found,) = [one for one in objects(name) if one["kind"] == "RayCluster"]
    return found


def groups(cluster: Object) -> Iterator[tuple[str, Object, Object]]:
    """Yield the cluster's head and worker groups: name, group, its one container."""
    spec = cluster["spec"]
    for name, group in (
        ("head", spec["headGroupSpec"]),
        *((group["groupName"], group) for group in spec.get("workerGroupSpecs", [])),
    ):
        (container,) = group["template"]["spec"]["containers"]
        yield name, group, container


@functools.cache
def crd(kind: str) -> jsonschema.Draft202012Validator:
    """Return what checks against KubeRay's schema of a kind, made to refuse unknown fields.

    The API server drops them without a word: a typing error would go unnoticed.
    """
    file = Path(__file__).parent / "crds" / f"{kind.lower()}-v1.json"
    schema: Object = json.loads(file.read_text())
    schema["properties"]["metadata"] = {"type": "object"}
    _close(schema)
    return jsonschema.Draft202012Validator(schema)


def _close(schema: Any) -> None:
    if isinstance(schema, dict):
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
        if isinstance(schema.get("properties"), dict) and not open_ended:
            schema.setdefault("additionalProperties", False)
        for inner in schema.values():
            _close(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _close(inner)


def compose() -> Object:
    """Return the compose file, its anchors resolved."""
    found: Object = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
    return found


def ray_up() -> Object:
    """Return the configuration of `ray up`."""
    found: Object = yaml.safe_load((DEPLOY / "ray-up/cluster.yaml").read_text())
    return found


def systemd_unit() -> list[tuple[str, str, str]]:
    """Return the unit's lines: section, key, value. A key may come again."""
    section, found = "", []
    for line in (DEPLOY / "systemd/sessions-actor.service").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith(("#", ";")):
            key, separator, value = line.partition("=")
            assert separator, f"no setting: {line}"
            found.append((section, key, value))
    return found


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield every command of `sessions-actor` or `ray` in deploy/: where it stands, its words."""
    for build_name in BUILDS:
        for name, _, container in groups(cluster(build_name)):
            for hook, action in container.get("lifecycle", {}).items():
                yield f"{build_name} {name} {hook}", action["exec"]["command"]
    for file in JOBS:
        yield file.name, shlex.split(yaml.safe_load(file.read_text())["spec"]["entrypoint"])
    for name, service in compose()["services"].items():
        yield f"compose {name}", service["command"]
        yield f"compose {name} health", service["healthcheck"]["test"][1:]
        for hook in ("post_start", "pre_stop"):
            for one in service.get(hook, []):
                yield f"compose {name} {hook}", one["command"]
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        for line in ray_up()[key]:
            last = line.split("&&")[-1].strip()
            words = shlex.split(last)
            while "=" in words[0]:  # variables for this command
                words.pop(0)
            yield f"ray up {key}", words
    for section, key, value in systemd_unit():
        if (section, key) == ("Service", "ExecStart"):
            words = shlex.split(value)
            yield "systemd ExecStart", [Path(words[0]).name, *words[1:]]
