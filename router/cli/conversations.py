"""Commands on one conversation: ls, show, append, search, hibernate, delete."""

import sys
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sessions_actor.codec import dumps, loads
from sessions_actor.names import check_name
from sessions_actor.records import LEAF, Parent

from ..render import ConversationTree, TreeRow, clean, count, moment, preview, size, table
from .deployment import Deployment, command, infos

if TYPE_CHECKING:
    from ..client import Client
    from ..models import ConversationInfo

Name = Annotated[str, typer.Argument(help="Name of the conversation.", show_default=False)]
SessionId = Annotated[
    str, typer.Option("--session", "-s", help="Session within it; the first one has no name.")
]


_EXAMPLES = {
    "ls": (
        "sessions-actor ls",
        "sessions-actor ls user- --limit 50",
        "sessions-actor ls --json",
    ),
    "show": (
        "sessions-actor show alice",
        "sessions-actor show alice --session drafts --full",
        "sessions-actor show alice --json",
    ),
    "append": (
        'sessions-actor append alice "Where were we?"',
        'sessions-actor append alice "In Oslo." --role assistant --parent q1',
        "cat note.txt | sessions-actor append alice -",
    ),
    "search": (
        'sessions-actor search alice "durable object"',
        "sessions-actor search alice invoice --limit 5 --json",
    ),
    "hibernate": ("sessions-actor hibernate alice",),
    "delete": (
        "sessions-actor delete alice",
        "sessions-actor delete alice --yes",
    ),
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "ls", examples=_EXAMPLES["ls"])(ls)
    command(app, "show", examples=_EXAMPLES["show"])(show)
    command(app, "append", examples=_EXAMPLES["append"])(append)
    command(app, "search", examples=_EXAMPLES["search"])(search)
    command(app, "hibernate", examples=_EXAMPLES["hibernate"])(hibernate)
    command(app, "delete", examples=_EXAMPLES["delete"])(delete)


async def ls(
    deployment: Deployment,
    prefix: Annotated[str, typer.Argument(help="Only names that begin so.")] = "",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="At most so many.")
    ] = None,
) -> None:
    """List the conversations, in the order of their names."""
    out = deployment.output
    async with deployment.connect() as client:
        found = infos(client, prefix, limit)
        if out.as_json:
            await out.json_array(found)
            return
        listed = table("NAME", "STATE", "SIZE", "LAST ACTIVE", right=("SIZE",))
        number = total = 0
        async for info in found:
            number, total = number + 1, total + info.file_bytes
            listed.add_row(
                Text(clean(info.name)), _state(info), size(info.file_bytes), _last_active(info)
            )
        if number:
            out.show(listed)
        out.note(f"{count(number, 'conversation')}, {size(total)}")


def _state(info: "ConversationInfo") -> Text:
    styles = {"active": "green", "migrating": "yellow"}
    return Text(info.state, style=styles.get(info.state, "dim"))


def _last_active(info: "ConversationInfo") -> str:
    return moment(info.last_active_at)


async def show(
    deployment: Deployment,
    name: Name,
    session: SessionId = "",
    full: Annotated[
        bool, typer.Option("--full", help="Every message; else long runs are shown by their ends.")
    ] = False,
) -> None:
    """Show a conversation as a tree: every branch, overlays, the active leaf."""
    out = deployment.output
    async with deployment.connect() as client:
        info = await client.info(name)
        conversation = client.get(name)
        handle = conversation.session(session)
        overlays = await handle.get_compactions()
        if out.as_json:
            head = {"name": name, "session": session, "compactions": overlays}
            await _show_json(deployment, head, handle.history_rows())
            return
        rows = []
        with out.waiting("Reading"):
            async for row in handle.history_rows():
                message = row.message
                rows.append(
                    TreeRow(
                        message["id"],
                        row.parent_id,
                        message["role"],
                        preview(message),
                        row.created_at,
                    )
                )
            sessions = [one for one in await conversation.session_ids() if one != session]
        tree = ConversationTree(rows, overlays, full=full)
        out.show(tree.render(name if not session else f"{name}, session {session}"))
        facts = [count(len(rows), "message"), count(tree.branches, "branch", "branches")]
        if tree.spans:
            facts.append(count(len(tree.spans), "overlay"))
        out.note(", ".join([*facts, size(info.file_bytes), info.state]))
        if sessions:
            names = ", ".join(repr(clean(one)) for one in sessions[:20])
            out.note(f"other sessions: {names}{', …' if len(sessions) > 20 else ''} (--session)")


async def _show_json(
    deployment: Deployment, head: dict[str, Any], rows: AsyncIterator[Any]
) -> None:
    """Print one object whose rows stream."""
    from .output import plain

    out = deployment.output
    out.write(dumps({key: plain(value) for key, value in head.items()})[:-1] + b',"rows":')
    await out.json_array(rows)
    out.write(b"}\n")


async def append(
    deployment: Deployment,
    name: Name,
    text: Annotated[
        str | None,
        typer.Argument(
            help="What to say; without it, or with -, standard input.", show_default=False
        ),
    ] = None,
    role: Annotated[str, typer.Option("--role", "-r", help="Who says it.")] = "user",
    message_id: Annotated[
        str | None,
        typer.Option("--id", help="Id of the message; else a new one.", show_default=False),
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option("--parent", help="Message to answer; without it, the active leaf."),
    ] = None,
    root: Annotated[bool, typer.Option("--root", help="Begin a new root.")] = False,
    as_message: Annotated[
        bool, typer.Option("--message", help="The text is a whole message, as JSON.")
    ] = False,
    session: SessionId = "",
) -> None:
    """Append a message; the conversation is made if it is new."""
    check_name(name)
    if root and parent is not None:
        raise ValueError("--root and --parent exclude each other")
    said = sys.stdin.read() if text is None or text == "-" else text
    message: Any = loads(said) if as_message else _message(said, role, message_id)
    above: Parent = None if root else LEAF if parent is None else parent
    async with deployment.connect() as client:
        handle = client.get(name).session(session)
        result = await handle.append_message(message, parent_id=above)
    out = deployment.output
    out.json(
        {"name": name, "session": session, "inserted": result.inserted, "message": result.message}
    )
    out.show(
        Text(f"appended {clean(result.message['id'])}")
        if result.inserted
        else Text(f"{clean(result.message['id'])} was there already: nothing was written")
    )


def _message(text: str, role: str, message_id: str | None) -> dict[str, Any]:
    return {
        "id": message_id or str(uuid.uuid4()),
        "role": role,
        "parts": [{"type": "text", "text": text}],
    }


async def search(
    deployment: Deployment,
    name: Name,
    query: Annotated[str, typer.Argument(help="One phrase.", show_default=False)],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 20,
    session: SessionId = "",
) -> None:
    """Find messages by their text, in every branch."""
    out = deployment.output
    async with deployment.connect() as client:
        await client.info(name)
        with out.waiting("Searching"):
            results = await client.get(name).session(session).search(query, limit=limit)
    out.json(results)
    found = table("MESSAGE", "ROLE", "TEXT")
    for result in results:
        found.add_row(Text(clean(result.id)), clean(result.role), _around(result.content, query))
    if results:
        out.show(found)
    out.note(f"{count(len(results), 'message')} found")


def _around(content: str, query: str, characters: int = 120) -> Text:
    """The words around the place found, which is marked where it stands literally."""
    words = clean(content, len(content) or 1)
    at = words.lower().find(clean(query).lower())
    begin = max(0, at - characters // 3) if at >= 0 else 0
    shown = ("…" if begin else "") + words[begin : begin + characters]
    text = Text(shown + ("…" if begin + characters < len(words) else ""))
    if at >= 0:
        mark = at - begin + (1 if begin else 0)
        text.stylize("bold green", mark, mark + len(clean(query)))
    return text


async def hibernate(deployment: Deployment, name: Name) -> None:
    """Let a conversation's actor go; the next call wakes it."""
    async with deployment.connect() as client:
        await client.info(name)
        await client.hibernate(name)
        info = await client.info(name)
    deployment.output.json(info)
    deployment.output.show(Text(f"{clean(name)} is {info.state}"))


async def delete(
    deployment: Deployment,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a conversation and everything in it, for good."""
    async with deployment.connect() as client:
        info = await client.info(name)
        if not yes:
            await _confirm(client, name, info)
        await client.delete(name)
    deployment.output.json({"name": name, "deleted": True})
    deployment.output.show(Text(f"{clean(name)} is deleted"))


async def _confirm(client: "Client", name: str, info: "ConversationInfo") -> None:
    if not sys.stdin.isatty():
        raise ValueError("deleting is for good: say --yes")
    question = f"Delete {clean(name)} ({size(info.file_bytes)}) for good?"
    if not typer.confirm(question, err=True):
        raise KeyboardInterrupt
