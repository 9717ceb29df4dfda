"""`sessions-actor health`: what a probe is told, without Ray."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from router.cli import app
from router.cli.deployment import UNREACHABLE

ROOT = Path(__file__).resolve().parents[2]


class Agent(BaseHTTPRequestHandler):
    """Answers as Ray's agent does."""

    status, text = 200, "raylet: success\ngcs: success"

    def do_GET(self) -> None:
        found = self.path == "/api/healthz"
        self.send_response(self.status if found else 404)
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Agent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_all_is_well(port: int) -> None:
    done = CliRunner().invoke(app, ["health", "--json", "--port", str(port)])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"raylet": "success", "gcs": "success"}


def test_something_is_down(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Agent, "status", 503)
    monkeypatch.setattr(Agent, "text", "raylet: Local Raylet failed\ngcs: success")
    done = CliRunner().invoke(app, ["health", "--port", str(port)])
    assert done.exit_code == UNREACHABLE
    assert "503" in done.stderr


def test_nothing_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = server.getsockname()[1]
    done = CliRunner().invoke(app, ["health", "--port", str(silent)])
    assert done.exit_code == UNREACHABLE
    assert "Ray's agent" in done.stderr


def test_a_probe_does_not_pay_for_importing_ray(port: int) -> None:
    code = (
        "import sys; from router.cli import app\n"
        f"try: app(['health', '--port', '{port}'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
