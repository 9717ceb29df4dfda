"""What every command shares: how it reaches a deployment, how it fails, and its exit codes."""

import asyncio
import inspect
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from sessions_actor.errors import ConversationNotFoundError, SessionsActorError

from .output import Output

if TYPE_CHECKING:
    from ..client import Client
    from ..models import ConversationInfo

FAILED = 1
USAGE = 2
PARTLY = 3
NOT_FOUND = 4
UNSOUND = 5
UNREACHABLE = 6
INTERRUPTED = 130

INFOS_AT_ONCE = 64

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed; 2 wrong use or input; 3 partly done, the rest is reported;"
    " 4 no such conversation; 5 faults were found; 6 no deployment reached; 130 interrupted."
)

_PANEL = "Deployment"

_SHARED: dict[str, Any] = {
    "address": Annotated[
        str | None,
        typer.Option(
            "--address",
            envvar="SESSIONS_ACTOR_ADDRESS",
            metavar="HOST:PORT",
            help="Ray cluster to join; `auto` finds a running one, `local` starts a private one."
            " Without it: RAY_ADDRESS, a running one, else a private one for this command.",
            rich_help_panel=_PANEL,
        ),
    ],
    "namespace": Annotated[
        str,
        typer.Option(
            "--namespace",
            envvar="SESSIONS_ACTOR_NAMESPACE",
            help="Ray namespace of the deployment.",
            rich_help_panel=_PANEL,
        ),
    ],
    "storage_root": Annotated[
        Path | None,
        typer.Option(
            "--storage-root",
            envvar="SESSIONS_ACTOR_STORAGE_ROOT",
            metavar="FOLDER",
            help="Where conversations are kept, for a deployment that is started here.",
            rich_help_panel=_PANEL,
        ),
    ],
    "as_json": Annotated[
        bool,
        typer.Option("--json", help="Print JSON for programs.", rich_help_panel=_PANEL),
    ],
}
# Each option that every command has, and whether a value follows it.
SHARED_OPTIONS = {"--address": True, "--namespace": True, "--storage-root": True, "--json": False}
_DEFAULTS: dict[str, Any] = {
    "address": None,
    "namespace": "sessions",
    "storage_root": None,
    "as_json": False,
}


@dataclass(slots=True)
class Deployment:
    """Where a command's deployment is, and where its output goes."""

    address: str | None = None
    namespace: str = "sessions"
    storage_root: Path | None = None
    output: Output = field(default_factory=Output)
    stays: bool = False
    """Whether the command goes on to serve, so that a cluster which it starts is no waste."""

    @asynccontextmanager
    async def connect(self, **settings: Any) -> "AsyncIterator[Client]":
        """Connect, with a word to the person waiting where that takes long.

        Raises: Unreachable when there is nothing to connect to.
        """
        if self.storage_root is not None:
            settings["storage_root"] = self.storage_root
        connection = open_client(self.address, self.namespace, settings)
        began = time.monotonic()
        with self.output.waiting("Connecting"):
            try:
                client = await connection.__aenter__()
            except (ConnectionError, TimeoutError) as error:
                raise UnreachableError(self.address, error) from error
        if client.owns_cluster and not self.stays:
            took_s = time.monotonic() - began
            self.output.note(
                f"No cluster runs here: one was started in {took_s:.0f} s, for this command alone."
                " `sessions-actor up` in another terminal keeps one running."
            )
        try:
            yield client
        finally:
            await connection.__aexit__(None, None, None)


def open_client(
    address: str | None, namespace: str, settings: dict[str, Any]
) -> "AbstractAsyncContextManager[Client]":
    """Make the client of a deployment, not yet connected."""
    # Ray takes a second to import: a command that only prints help does without.
    from ..client import connect
    from ..settings import Settings

    return connect(address, namespace=namespace, settings=Settings(**settings))


class UnreachableError(Exception):
    """No deployment was reached."""

    def __init__(self, address: str | None, cause: BaseException) -> None:
        super().__init__(address, cause)
        self.address, self.cause = address, cause

    def __str__(self) -> str:
        where = f"at {self.address}" if self.address else "here"
        reason = " ".join(str(self.cause).split())[:300]
        return (
            f"no deployment was reached {where} ({reason}); start one with `sessions-actor up`,"
            " or give the address of a running one with --address"
        )


Command = Callable[..., Awaitable[int | None]]


def command(
    app: typer.Typer, name: str | None = None, *, examples: Sequence[str] = (), **options: Any
) -> Callable[[Command], Command]:
    """Register an async function as a command, with the options that every command has.

    Its first parameter is the `Deployment`; it returns its exit code, None for 0. `examples` end
    its help.
    """
    if examples:
        # Lines of an epilog stay apart only as paragraphs.
        options["epilog"] = "\n\n".join(["Examples:", *(f"  $ {one}" for one in examples)])

    def register(function: Command) -> Command:
        signature = inspect.signature(function, eval_str=True)
        own = list(signature.parameters.values())[1:]
        shared = [
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[key], annotation=kind
            )
            for key, kind in _SHARED.items()
        ]

        def run(**given: Any) -> None:
            target = Deployment(
                given.pop("address"),
                given.pop("namespace"),
                given.pop("storage_root"),
                Output(as_json=given.pop("as_json")),
            )
            raise typer.Exit(run_guarded(target.output, lambda: function(target, **given)))

        # What typer reads of a function: its name, its help, its parameters.
        face: Any = run
        face.__name__, face.__doc__ = function.__name__, function.__doc__
        face.__signature__ = signature.replace(parameters=[*own, *shared])
        face.__annotations__ = {one.name: one.annotation for one in [*own, *shared]}
        app.command(name, **options)(face)
        return function

    return register


def run_guarded(output: Output, work: Callable[[], Awaitable[int | None]]) -> int:
    """Run a command's work; what goes wrong becomes one line on stderr and an exit code."""

    async def outcome() -> int | None:
        return await work()

    try:
        with output.without_chatter():
            return asyncio.run(outcome()) or 0
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        return _failure(output, first)
    except (Exception, KeyboardInterrupt) as error:
        return _failure(output, error)


def _failure(output: Output, error: BaseException) -> int:
    if os.environ.get("SESSIONS_ACTOR_DEBUG"):
        raise error
    if isinstance(error, KeyboardInterrupt):
        output.error("interrupted", error)
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has had enough; stdout must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.stdout.fileno())
        return FAILED
    if isinstance(error, ConversationNotFoundError):
        output.error(str(error), error)
        return NOT_FOUND
    if isinstance(error, UnreachableError):
        output.error(str(error), error)
        return UNREACHABLE
    if isinstance(error, ValidationError):
        output.error(_settings_fault(error), error)
        return USAGE
    if isinstance(error, ValueError | TypeError | RuntimeError) and not _is_ray(error):
        output.error(str(error), error)
        return USAGE
    if isinstance(error, OSError):
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        output.error(what or type(error).__name__, error)
        return FAILED
    if isinstance(error, SessionsActorError):
        output.error(str(error), error)
        return FAILED
    if _is_ray(error):
        cause = UnreachableError(None, error)
        output.error(str(cause), error)
        return UNREACHABLE
    raise error


def _is_ray(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] == "ray"


def _settings_fault(error: ValidationError) -> str:
    faults = [
        f"{'.'.join(map(str, fault['loc'])) or 'settings'}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_context=False)
    ]
    return f"the settings do not fit: {'; '.join(faults)} (see SESSIONS_ACTOR_* and the options)"


async def infos(
    client: "Client", prefix: str = "", limit: int | None = None
) -> "AsyncIterator[ConversationInfo]":
    """Yield what is known of each conversation, in the order of names, a window at a time.

    One that is deleted meanwhile is passed over.
    """
    window: list[str] = []

    async def one(name: str) -> "ConversationInfo | None":
        try:
            return await client.info(name)
        except ConversationNotFoundError:
            return None

    async def found() -> "list[ConversationInfo]":
        listed = await asyncio.gather(*map(one, window))
        window.clear()
        return [info for info in listed if info is not None]

    async for name in client.list(prefix, limit):
        window.append(name)
        if len(window) >= INFOS_AT_ONCE:
            for info in await found():
                yield info
    for info in await found():
        yield info
