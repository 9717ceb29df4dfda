"""Install and serve the reference: Cloudflare's agents/sessions on workerd.

The folder given is kept between runs: ``node_modules`` and the bundle stay, the state of served
objects does not. The port is chosen by the system, so any number of servers run side by side.
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO

PACKAGES = ("agents@0.32.0", "workerd@1.20261117.1", "esbuild@0.28.2")
SOURCES = Path(__file__).parent
BUNDLE = (
    "--bundle", "--format=esm", "--platform=neutral", "--main-fields=module,main",
    "--conditions=workerd,worker,import", "--external:cloudflare:*", "--external:node:*",
    "--outfile=bundle.js", "--log-level=warning",
)  # fmt: skip
INSTALL_TIMEOUT_S = 600
BUNDLE_TIMEOUT_S = 60


def missing_tool() -> str | None:
    """Name the program the reference needs and this machine lacks."""
    return next((tool for tool in ("node", "npm") if shutil.which(tool) is None), None)


def install(folder: Path) -> None:
    """Install the packages into the folder, unless they are there, and bundle the worker.

    Raises:
        RuntimeError: npm or esbuild failed; the text ends with what they said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / "agents").is_dir():
        manifest = folder / "package.json"
        if not manifest.exists():
            manifest.write_text('{"name": "reference", "private": true}\n', encoding="utf-8")
        flags = ("--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps")
        _run(["npm", "install", *flags, *PACKAGES], folder, INSTALL_TIMEOUT_S)
    for name in ("worker.js", "config.capnp"):
        shutil.copyfile(SOURCES / name, folder / name)
    esbuild = folder / "node_modules" / "esbuild" / "bin" / "esbuild"
    _run(["node", str(esbuild), "worker.js", *BUNDLE], folder, BUNDLE_TIMEOUT_S)


def _run(command: list[str], folder: Path, timeout_s: int) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise RuntimeError(f"{command[0]} failed in {folder} (exit {done.returncode}): {said}")


def workerd(folder: Path) -> Path:
    """Find the workerd program of this machine in an installed folder."""
    found = sorted((folder / "node_modules" / "@cloudflare").glob("workerd-*/bin/workerd"))
    if not found:
        raise RuntimeError(f"no workerd for this machine in {folder}: remove it and install again")
    return found[0]


class ReferenceServer:
    """The reference, served while the ``with`` block runs.

    Args:
        folder: Where the packages are, or will be, installed.
        port: Port on 127.0.0.1; 0 lets the system choose.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder.resolve()
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._state: tempfile.TemporaryDirectory[str] | None = None

    @property
    def base(self) -> str:
        """The address to post to."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "ReferenceServer":
        install(self.folder)
        self._state = tempfile.TemporaryDirectory(prefix="reference-state-")
        reader, writer = os.pipe()
        command = [
            str(workerd(self.folder)), "serve", "config.capnp",
            f"--socket-addr=http=127.0.0.1:{self.port}",
            f"--directory-path=storage={self._state.name}",
            f"--control-fd={writer}",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, cwd=self.folder, pass_fds=(writer,), stderr=subprocess.PIPE
        )
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as control:
            self.port = self._listening(control)
        return self

    def _listening(self, control: IO[str]) -> int:
        for line in control:
            event = json.loads(line)
            if event.get("event") == "listen":
                return int(event["port"])
        assert self._process is not None
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode(errors="replace").strip()
        self.__exit__(None, None, None)
        raise RuntimeError(f"workerd ended before it listened: {said}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None
        if self._state is not None:
            self._state.cleanup()
            self._state = None
