"""Every file of a deployment is its owner's alone, whatever the umask."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.bootstrap import _keep_token_private
from router.cli.files import _target
from router.cli.output import Output
from router.directory import Directory

from .test_router import World, message

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
