"""Which cluster a process joins: what is found, and whether it answers."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.bootstrap import _answers, _read_note, _started_by_ray_start


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"127.0.0.1:{port}"


def test_an_address_answers_or_not(listening: str, silent: str) -> None:
    assert _answers(listening)
    assert not _answers(silent)
    for odd in ("", "auto", "host", "host:port", ":1", "nowhere.invalid:6379"):
        assert not _answers(odd)


def test_a_note_is_read_if_it_is_one(tmp_path: Path) -> None:
    file = tmp_path / "deployment.json"
    assert _read_note(file) is None
    for odd in ("", "{", "[]", "{}", '{"address": 5}'):
        file.write_text(odd)
        assert _read_note(file) is None
    file.write_text(json.dumps({"address": "a:1", "namespace": "n"}))
    assert _read_note(file) == {"address": "a:1", "namespace": "n"}


def test_a_cluster_of_ray_start_counts_only_while_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listening: str, silent: str
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert _started_by_ray_start() is None
    (tmp_path / "ray").mkdir()
    file = tmp_path / "ray" / "ray_current_cluster"
    file.write_text(silent)
    assert _started_by_ray_start() is None
    file.write_text(f"{listening}\n")
    assert _started_by_ray_start() == listening
