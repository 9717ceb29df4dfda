"""Every file of a deployment is its owner's alone, whatever the umask."""

from __future__ import annotations

import ast
import base64
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.bootstrap import _keep_token_private
from router.cli.files import _target
from router.cli.output import Output
from router.directory import Directory

from ..test_tidy import ROOT, SOURCES
from .deployments import World, message

ATTACHMENT = base64.b64encode(os.urandom(4 << 20)).decode()


def loose(root: Path) -> list[str]:
    """List what another user of the machine could open: folders and files, `root` included."""
    found = []
    for path in (root, *sorted(root.rglob("*"))):
        mode = stat.S_IMODE(path.lstat().st_mode)
        allowed = 0o700 if path.is_dir() else 0o600
        if mode & ~allowed:
            found.append(f"{path.relative_to(root)}: {mode:o}")
    return found


@pytest.fixture(params=[0o000, 0o022], ids=["umask-000", "umask-022"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


async def test_what_conversations_leave_on_disk(umask: int, tmp_path: Path) -> None:
    root = tmp_path / "new" / "data"
    Directory(root).close()  # makes the folders that are missing
    assert loose(tmp_path / "new") == []
    world = World(root)
    life = await world.start()
    try:
        session = life.get("alice")
        part = {"type": "file", "mediaType": "image/png", "data": ATTACHMENT}
        await session.append_message({"id": "a", "role": "user", "parts": [part]})
        await session.append_messages([message(f"m{i}") for i in range(200)])
        assert await session.search("m7")
        names = {path.suffix for path in root.rglob("*") if path.is_file()}
        assert {".sqlite", ".sqlite-wal", ".sqlite-shm", ".lock"} <= names, "all kinds are there"
        assert loose(tmp_path / "new") == []
        await life.relocation.migrate("alice")
        await life.get("bob").append_message(message("m"))
        await life.administration.delete("bob")
        assert loose(tmp_path / "new") == []
    finally:
        await life.upkeep.close()
    assert loose(tmp_path / "new") == []


def test_an_export(umask: int, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with _target(tmp_path / "all.jsonl", Output()) as target:
        target.write(b"{}\n")
        assert loose(tmp_path) == []
    assert (tmp_path / "all.jsonl").read_bytes() == b"{}\n"
    assert loose(tmp_path) == []


def test_rays_token(umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    _keep_token_private()
    (tmp_path / ".ray").mkdir()
    token = tmp_path / ".ray" / "auth_token"
    token.write_text("secret")
    assert token.stat().st_mode & 0o077
    _keep_token_private()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_the_check_sees_a_loose_file(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "a").touch(mode=0o600)
    assert loose(tmp_path) == []
    (tmp_path / "a").chmod(0o640)
    assert loose(tmp_path) == ["a: 640"]


# A copy that is made in a private temporary folder.
ELSEWHERE = {("router/formats/durable_object.py", "target.open('wb')")}


def _loosely(path: Path) -> list[str]:
    """List the calls of a source that make a file or a folder with the mode of the umask."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        given = {one.arg: ast.unparse(one.value) for one in node.keywords}
        modes = [one.value for one in node.args if isinstance(one, ast.Constant)]
        writes = [mode for mode in modes if isinstance(mode, str) and set(mode) & set("wxa")]
        makes = name == "open" and any(set(mode) <= set("wxab+t") for mode in writes)
        if (
            name in ("write_text", "write_bytes", "touch", "makedirs")
            or (makes and given.get("opener") not in ("private", "_private"))
            or (name == "mkdir" and ("parents" in given or _mode(node) != 0o700))
        ):
            found.append(ast.unparse(node))
    return found


def _mode(node: ast.Call) -> Any:
    values = [one.value for one in node.keywords if one.arg == "mode"] + node.args[-1:]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_asks_the_umask(path: Path) -> None:
    place = str(path.relative_to(ROOT))
    assert [call for call in _loosely(path) if (place, call) not in ELSEWHERE] == []


def test_that_check_sees_loose_calls(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text(
        "path.write_text('x')\nopen(path, 'wb')\npath.open('x')\npath.mkdir()\n"
        "path.mkdir(0o755)\npath.mkdir(mode=0o700, parents=True)\n"
        "open(path)\nopen(path, 'w', opener=private)\nos.mkdir(path, 0o700)\n"
    )
    assert len(_loosely(source)) == 6
