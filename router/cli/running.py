"""Commands that run something: demo, up."""

import asyncio
import os
import shlex
import shutil
import signal
import sys
from typing import Annotated

import typer
from rich.text import Text

from ..render import clean, facts
from .deployment import FAILED, Deployment, command

_EXAMPLES = {
    "demo": ("sessions-actor demo",),
    "up": (
        "sessions-actor up",
        "sessions-actor up --storage-root /var/lib/sessions-actor",
        "sessions-actor up --join 10.0.0.1:6379",
    ),
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "demo", examples=_EXAMPLES["demo"])(demo)
    command(app, "up", examples=_EXAMPLES["up"])(up)


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
) -> int:
    """Serve conversations from this machine until Ctrl-C.

    Joins the cluster at --address, or a running one, and starts the router there if it has none;
    without a cluster, starts one.
    """
    if join is not None:
        return _join(join)
    out = deployment.output
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with deployment.connect() as client:
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


def _join(address: str) -> int:
    """Become a node of a running cluster: this process turns into Ray's."""
    ray = shutil.which("ray", path=os.path.dirname(sys.executable)) or shutil.which("ray")
    if ray is None:
        raise ValueError("the `ray` command is not on the path: is Ray installed here?")
    os.execv(ray, [ray, "start", f"--address={clean(address)}", "--block"])
    return FAILED
