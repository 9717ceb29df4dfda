"""The site builds without a warning, and its reference holds every public name."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import router
import sessions_actor

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("mkdocs", reason="the extra docs is not installed")
pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")

# What is public for people to import but explained where it is used.
ELSEWHERE = {"LEAF", "MessagePart"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning is a failure."""
    folder = tmp_path_factory.mktemp("site")
    command = ["mkdocs", "build", "--strict", "--quiet", "-f", "deploy/mkdocs.yml", "-d"]
    done = subprocess.run(
        [sys.executable, "-m", *command, str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return folder


def test_the_reference_holds_every_public_name(site: Path) -> None:
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(inventory).decode().splitlines()
    documented = {line.split(" ")[0].rpartition(".")[2] for line in lines}
    public = {*router.__all__, *sessions_actor.__all__} - ELSEWHERE
    assert sorted(public - documented) == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert "fonts.googleapis.com" not in page
    assert 'src="https://' not in page
