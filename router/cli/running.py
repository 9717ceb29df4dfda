"""Commands that run something: demo, up, health."""

import asyncio
import os
import shlex
import shutil
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ..render import clean, count, facts
from .deployment import FAILED, UNREACHABLE, Deployment, UnreachableError, command

if TYPE_CHECKING:
    from ..client import Client

# Where Ray's agent listens unless `ray start` says otherwise.
AGENT_PORT = 52365
RETRY_S = 0.5

_EXAMPLES = {
    "demo": ("sessions-actor demo",),
    "up": (
        "sessions-actor up",
        "sessions-actor up --storage-root /var/lib/sessions-actor",
        "sessions-actor up --join 10.0.0.1:6379",
        "sessions-actor up --address 10.0.0.1:6379 --detach --wait 60",
    ),
    "health": ("sessions-actor health", "sessions-actor health --router --timeout 30"),
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "demo", examples=_EXAMPLES["demo"])(demo)
    command(app, "up", examples=_EXAMPLES["up"])(up)
    command(app, "health", examples=_EXAMPLES["health"])(health)


async def demo(deployment: Deployment) -> None:
    """Show what this does, in half a minute, on a private cluster that leaves nothing behind."""
    from ..demo import run_demo

    out = deployment.output
    measured = await run_demo(None if out.as_json else out.console)
    out.json(measured.facts)


async def up(
    deployment: Deployment,
    join: Annotated[
        str | None,
        typer.Option(
            "--join",
            metavar="HOST:PORT",
            help="Add this machine to the cluster of a head that runs there.",
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Start the router in a cluster that runs, and leave it there."
        ),
    ] = False,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="How long to wait for the cluster to answer."
        ),
    ] = 0.0,
) -> int:
    """Serve conversations from this machine until Ctrl-C.

    Joins the cluster at --address, or a running one, and starts the router there if it has none;
    without a cluster, starts one. With --detach it starts nothing but the router, with the
    settings of this environment, and does not stay.
    """
    if join is not None:
        return _join(join)
    out, deployment.stays = deployment.output, True
    if detach:
        deployment.address = deployment.address or "auto"
        async with _answering(deployment, wait_s) as client:
            root = client.settings.storage_root
            out.json(
                {
                    "namespace": deployment.namespace,
                    "storage_root": str(root),
                    "nodes": await client.nodes(),
                }
            )
            out.show(facts([("serving", deployment.namespace), ("storage", root)]))
        return 0
    stop = asyncio.Event()
    async with _answering(deployment, wait_s) as client:
        # Only now: as it joins, Ray puts a handler of SIGTERM in place that ends the process.
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        import ray

        from ..settings import default_storage_root

        address = ray.get_runtime_context().gcs_address
        nodes = await client.nodes()
        root = client.settings.storage_root
        out.json(
            {
                "address": address,
                "namespace": deployment.namespace,
                "storage_root": str(root),
                "nodes": nodes,
            }
        )
        # Ray has set this where its cluster asks for a token; commands elsewhere need it too.
        token = "RAY_AUTH_MODE=token " if os.environ.get("RAY_AUTH_MODE") == "token" else ""
        here = f" --storage-root {shlex.quote(str(root))}" if root != default_storage_root() else ""
        out.show(
            facts(
                [
                    ("serving at", Text(address, style="bold green")),
                    ("namespace", deployment.namespace),
                    ("storage", root),
                    ("nodes", len(nodes)),
                    ("try, here", f"sessions-actor{here} append alice Hello"),
                    ("elsewhere", f"{token}sessions-actor --address {address} ls"),
                    ("more machines", f"{token}sessions-actor up --join {address}"),
                ]
            )
        )
        if token:
            out.note("Other machines need this cluster's token: see `ray get-auth-token --help`.")
        out.note("Ctrl-C ends it; what is active hibernates first.")
        await stop.wait()
        out.note("Stopping …")
    return 0


@asynccontextmanager
async def _answering(deployment: Deployment, wait_s: float) -> "AsyncIterator[Client]":
    """Connect, trying again for as long as the cluster may take to come up."""
    deadline = asyncio.get_running_loop().time() + wait_s
    async with AsyncExitStack() as stack:
        while True:
            try:
                client = await stack.enter_async_context(deployment.connect())
                break
            except UnreachableError:
                if asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(RETRY_S)
        yield client


async def health(
    deployment: Deployment,
    router: Annotated[
        bool, typer.Option("--router", help="Ask the router too: joins the cluster, takes 2 s.")
    ] = False,
    port: Annotated[
        int,
        typer.Option("--port", help="Where Ray's agent listens: --dashboard-agent-listen-port."),
    ] = AGENT_PORT,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long it may take.")
    ] = 5.0,
) -> int:
    """Say whether this machine's Ray lives, for probes: exit code 0, or 6 when it does not.

    On a head that means its GCS too. It needs Ray's agent, which `ray[default]` brings.
    """
    try:
        found = await asyncio.to_thread(_agent_says, port, timeout_s)
    except OSError as error:
        deployment.output.error(f"Ray's agent does not say that all is well: {error}", error)
        return UNREACHABLE
    if router:
        deployment.address = deployment.address or "auto"
        async with deployment.connect() as client:
            nodes = await asyncio.wait_for(client.nodes(), timeout_s)
        found["router"] = f"serves on {count(len(nodes), 'node')}"
    deployment.output.json(found)
    deployment.output.show(facts(sorted(found.items())))
    return 0


def _agent_says(port: int, timeout_s: float) -> dict[str, str]:
    """Ask Ray's agent on this machine for the health of what it watches.

    Raises: OSError when it does not answer, or answers that something is down.
    """
    url = f"http://127.0.0.1:{port}/api/healthz"
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        lines = answer.read().decode(errors="replace").splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def _join(address: str) -> int:
    """Become a node of a running cluster: this process turns into Ray's."""
    ray = shutil.which("ray", path=os.path.dirname(sys.executable)) or shutil.which("ray")
    if ray is None:
        raise ValueError("the `ray` command is not on the path: is Ray installed here?")
    os.execv(ray, [ray, "start", f"--address={clean(address)}", "--block"])
    return FAILED
