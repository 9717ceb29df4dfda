"""The command `top`: what a deployment does, live or once."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..render import clean, facts, size, table
from .deployment import Deployment, command

if TYPE_CHECKING:
    from ..client import Client
    from ..models import ConversationInfo, NodeInfo


_EXAMPLES = {
    "top": (
        "sessions-actor top",
        "sessions-actor top --once",
        "sessions-actor top --json --limit 100",
    ),
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "top", examples=_EXAMPLES["top"])(top)


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen at one moment."""

    at_s: float
    router_s: float
    """How long the router took to answer."""
    nodes: "list[NodeInfo]"
    active: "list[ConversationInfo]"


async def top(
    deployment: Deployment,
    once: Annotated[
        bool, typer.Option("--once", help="Look once and end; --json implies it.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="At most so many conversations.")
    ] = 20,
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.2, metavar="SECONDS", help="Between two looks.")
    ] = 2.0,
) -> None:
    """Watch a deployment: nodes, the conversations used last, their sizes and growth.

    Conversations that hibernate are not shown. Ctrl-C ends it.
    """
    out = deployment.output
    async with deployment.connect() as client:
        sight = await look(client, limit)
        out.json(
            {
                "at": datetime.fromtimestamp(sight.at_s, UTC).isoformat(timespec="milliseconds"),
                "router_ms": round(sight.router_s * 1000, 3),
                "nodes": sight.nodes,
                "active": [
                    {**asdict(info), "idle_s": idle_s(info, sight.at_s)} for info in sight.active
                ],
            }
        )
        if once or out.as_json or not out.console.is_terminal:
            out.show(screen(sight, {}, 0.0))
            return
        with Live(console=out.console, screen=True, auto_refresh=False) as live:
            before = sight
            while True:
                sizes = {info.name: info.file_bytes for info in before.active}
                live.update(screen(sight, sizes, sight.at_s - before.at_s), refresh=True)
                await asyncio.sleep(interval_s)
                before, sight = sight, await look(client, limit)


async def look(client: "Client", limit: int) -> Sight:
    """Ask the router what there is now."""
    began = time.perf_counter()
    nodes = await client.nodes()
    router_s = time.perf_counter() - began
    return Sight(time.time(), router_s, nodes, await client.active(limit))


def idle_s(info: "ConversationInfo", now_s: float) -> float:
    """Return how long ago a conversation was used, by this machine's clock."""
    used_s = datetime.fromisoformat(info.last_active_at).timestamp()
    return round(max(0.0, now_s - used_s), 3)


def screen(sight: Sight, sizes_before: Mapping[str, int], elapsed_s: float) -> Group:
    """Lay out what is seen.

    Args: `sizes_before` are the conversations' sizes at the look before, so long ago.
    """
    head = facts(
        [
            ("router answers in", f"{sight.router_s * 1000:.1f} ms"),
            ("active", f"{sum(node.active for node in sight.nodes):,} conversations"),
            ("nodes", len(sight.nodes)),
        ]
    )
    return Group(
        head, Text(), _nodes(sight), Text(), _conversations(sight, sizes_before, elapsed_s)
    )


def _nodes(sight: Sight) -> Table:
    shown = table(
        "NODE", "ADDRESS", "STATE", "ACTIVE", "WARM", "AT MOST", right=("ACTIVE", "WARM", "AT MOST")
    )
    for node in sight.nodes:
        state = Text(node.state, style="green" if node.state == "alive" else "yellow")
        numbers = (f"{node.active:,}", f"{node.idle:,}", f"{node.max_active:,}")
        shown.add_row(node.node_id[:8], clean(node.address), state, *numbers)
    return shown


def _conversations(sight: Sight, sizes_before: Mapping[str, int], elapsed_s: float) -> Table:
    shown = table(
        "CONVERSATION",
        "STATE",
        "NODE",
        "SIZE",
        "QUOTA",
        "GROWTH",
        "REPLICA",
        "IDLE",
        right=("SIZE", "QUOTA", "GROWTH", "REPLICA", "IDLE"),
    )
    for info in sight.active:
        before = sizes_before.get(info.name)
        growth = ""
        if before is not None and elapsed_s > 0 and info.file_bytes != before:
            growth = f"{size((info.file_bytes - before) / elapsed_s)}/s"
        shown.add_row(
            Text(clean(info.name, 60)),
            info.state,
            (info.node_id or "")[:8],
            size(info.file_bytes),
            f"{info.file_bytes / info.quota_bytes:.0%}",
            growth,
            _lag(info),
            f"{idle_s(info, sight.at_s):,.0f} s",
        )
    return shown


def _lag(info: "ConversationInfo") -> Text:
    """Say how far a replica is behind; nothing where there is none."""
    if info.replica_lag_s is None:
        return Text()
    if not info.replica_lag_s:
        return Text("in step", style="green")
    return Text(f"{info.replica_lag_s:.1f} s behind", style="yellow")
