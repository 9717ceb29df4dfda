"""Builds a kustomization: by kubectl or kustomize where installed, else by the part of it here.

The part here knows what deploy/kuberay uses: resources, patches (JSON 6902 operations, a merge of
maps, `$patch: delete`), labels on the objects themselves, and images. It refuses every other field,
so that a kustomization never means less here than it does in a cluster.
"""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

_FIELDS = {"apiVersion", "kind", "resources", "patches", "labels", "images"}


def build(folder: Path) -> list[Object]:
    """Return the objects of a kustomization."""
    for command in (["kubectl", "kustomize"], ["kustomize", "build"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, str(folder)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return list(yaml.safe_load_all(done.stdout))
    return build_here(folder)


def build_here(folder: Path) -> list[Object]:
    """Return the objects of a kustomization, built here."""
    spec = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(spec) <= _FIELDS, f"not known here: {sorted(set(spec) - _FIELDS)}"
    objects: list[Object] = []
    for resource in spec.get("resources", []):
        path = folder / resource
        objects += build_here(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    for patch in spec.get("patches", []):
        objects = _patched(objects, patch, folder)
    for label in spec.get("labels", []):
        assert set(label) == {"pairs"}
        for one in objects:
            one["metadata"].setdefault("labels", {}).update(label["pairs"])
    for image in spec.get("images", []):
        for container in _containers(objects):
            if container["image"].split(":")[0] == image["name"]:
                name = image.get("newName", image["name"])
                container["image"] = f"{name}:{image['newTag']}"
    return objects


def _patched(objects: list[Object], patch: Object, folder: Path) -> list[Object]:
    assert set(patch) <= {"target", "patch", "path"}
    text = patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text()
    change = yaml.safe_load(text)
    target = patch.get("target") or {
        "kind": change["kind"],
        "name": change["metadata"]["name"],
    }
    found = [
        one
        for one in objects
        if one["kind"] == target["kind"] and one["metadata"]["name"] == target["name"]
    ]
    assert found, f"nothing is called {target}"
    if isinstance(change, list):
        for one in found:
            for operation in change:
                _operate(one, operation)
        return objects
    if change.get("$patch") == "delete":
        return [one for one in objects if one not in found]
    for one in found:
        _merge(one, change)
    return objects


def _merge(value: Object, change: Object) -> None:
    for key, new in change.items():
        assert not isinstance(new, list), "a list's merge depends on its schema: use operations"
        if isinstance(new, dict) and isinstance(value.get(key), dict):
            _merge(value[key], new)
        else:
            value[key] = copy.deepcopy(new)


def _operate(document: Any, operation: Object) -> None:
    """Carry out one operation of RFC 6902."""
    kind = operation["op"]
    if kind == "copy":
        parent, key = _place(document, operation["from"])
        value = copy.deepcopy(parent[key])
    else:
        value = copy.deepcopy(operation.get("value"))
    parent, key = _place(document, operation["path"])
    if kind == "remove":
        del parent[key]
    elif kind == "replace":
        assert key in parent or isinstance(parent, list), f"{operation['path']}: not there"
        parent[key] = value
    elif kind in ("add", "copy") and isinstance(parent, list):
        parent.insert(len(parent) if key == "-" else int(key), value)
    elif kind in ("add", "copy"):
        parent[key] = value
    else:
        raise AssertionError(f"no such operation here: {kind}")


def _place(document: Any, pointer: str) -> tuple[Any, Any]:
    keys = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for key in keys[:-1]:
        document = document[int(key)] if isinstance(document, list) else document[key]
    last = keys[-1]
    return document, int(last) if isinstance(document, list) and last != "-" else last


def _containers(value: Any) -> Iterator[Object]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("containers", "initContainers") and isinstance(inner, list):
                yield from inner
            else:
                yield from _containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _containers(inner)
