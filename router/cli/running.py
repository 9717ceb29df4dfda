"""Commands that run something: demo, up."""

import asyncio
import os
import shutil
import signal
import sys
from typing import Annotated

import typer
from rich.text import Text

from ..render import clean, facts
from .deployment import FAILED, Deployment, command


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "demo")(demo)
    command(app, "up")(up)


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

        address = ray.get_runtime_context().gcs_address
        nodes = await client.nodes()
        out.json({"address": address, "namespace": deployment.namespace, "nodes": nodes})
        out.show(
            facts(
                [
                    ("serving at", Text(address, style="bold green")),
                    ("namespace", deployment.namespace),
                    ("nodes", len(nodes)),
                    ("try", f"sessions-actor append --address {address} alice Hello"),
                    ("more machines", f"sessions-actor up --join {address}"),
                ]
            )
        )
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
