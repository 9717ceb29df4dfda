"""The house in order: import layers, exports, file sizes, nothing that belongs elsewhere."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(p for name in ("sessions_actor", "router") for p in (ROOT / name).rglob("*.py"))

# Imports point down: a module imports its own layer and those below.
LAYERS = {
    "limits errors records names codec messages chunks attachments tokens overlays windows": 0,
    "compaction overload": 0,
    "confirmation gate database_file sql keyvalue storage replica": 1,
    "durable_object lifecycle open_object": 2,
    "sessions": 3,
    "tables tracking transfer transfer_steps conversation": 3,
    "wire waiting change_log disk lease retry channel reader hosted actor handle": 4,
    # What a process tells of itself: numbers and spans from the lowest layer on.
    "telemetry meters tracing": 0,
    "logs": 1,
    "reports metrics_export observing": 4,
}
LAYER_OF = {name: layer for names, layer in LAYERS.items() for name in names.split()}
PURE_FORBIDS = {"apsw", "ray", "asyncio", "time", "random", "uuid", "os", "sqlite3"}


def module_of(path: Path) -> str:
    """The top module of a source below `sessions_actor`: `sessions.store` is `sessions`."""
    return path.relative_to(ROOT / "sessions_actor").parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Absolute names of what a source imports while it is loaded or later."""
    package = path.relative_to(ROOT).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: -node.level]) if node.level else []
            base += (node.module or "").split(".") if node.module else []
            found |= {".".join([*base, alias.name]) for alias in node.names}
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_source_keeps_its_layer(path: Path) -> None:
    imported = imports_of(path)
    if path.is_relative_to(ROOT / "router"):
        return
    here = module_of(path)
    if here == "__init__":
        return
    assert not {name for name in imported if name.split(".")[0] == "router"}
    layer = LAYER_OF[here]
    for name in imported:
        parts = name.split(".")
        if parts[0] == "sessions_actor" and len(parts) > 1:
            assert LAYER_OF.get(parts[1], 0) <= layer, f"{name} is above {here}"
        if layer == 0:
            assert parts[0] not in PURE_FORBIDS, f"{here} is pure but imports {name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_source_is_one_thing_and_says_what(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 600
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module opens with what it holds"


def test_importing_the_package_does_not_import_ray() -> None:
    code = "import sessions_actor, sys; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_exports_exist_and_are_pinned() -> None:
    import router
    import sessions_actor

    for package in (sessions_actor, router):
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert len(set(package.__all__)) == len(package.__all__)
    assert {"connect", "connect_sync", "Settings"} <= set(router.__all__)
    assert {"open_object", "DurableObject", "Lifecycle", "Sessions"} <= set(sessions_actor.__all__)


def test_every_error_is_public() -> None:
    import sessions_actor
    from sessions_actor import errors

    for name, thing in vars(errors).items():
        if isinstance(thing, type) and issubclass(thing, errors.SessionsActorError):
            assert name in sessions_actor.__all__


def test_no_pickle_reads_what_is_stored() -> None:
    """Pickle crosses between processes of one deployment; what lies on disk is never unpickled."""
    layer_4 = {f"sessions_actor/{name}.py" for name in ("wire", "actor", "handle", "reader")}
    for path in SOURCES:
        if imports_of(path) & {"pickle", "cloudpickle", "shelve"}:
            assert str(path.relative_to(ROOT)) in layer_4
