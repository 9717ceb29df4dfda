"""The life of a host in memory: its capabilities, one shared startup, events, disposal.

Rules:
- Capabilities are added before startup and start in that order, then the host does.
- Concurrent callers share one startup and all see its outcome; a failed one is not kept, so the
  next caller tries again. Capabilities start over together; once all have started, only the host
  does.
- A call made from within startup returns at once instead of waiting for itself.
- A capability is given what it needs (`CapabilityContext`), never the host.

What it does not do: open the storage, or know what any capability is for.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self

from .durable_object import DurableObject
from .storage import Storage

HOST_ID = "host"
LIFECYCLE_ID = "lifecycle"
LISTENER_FAILED = "lifecycle:error"

# The lifecycles whose startup the running code is part of.
_starting: ContextVar[frozenset[object]] = ContextVar(
    "sessions_actor_starting", default=frozenset()
)


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """Something a capability or the host tells: who, what, and its details."""

    source: str
    type: str
    payload: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[LifecycleEvent], object]


class LifecycleEvents:
    """Events of one lifecycle; what is emitted here comes from the host."""

    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Hear every event from now on, in order, at once; return what ends that.

        Args: `listener` is a plain function. It is told of the events of startup only if it
            subscribes before, in the host's `__init__`.
        """
        if inspect.iscoroutinefunction(listener):
            raise TypeError("a listener is a plain function: start a task in it to wait")
        key = object()
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def emit(self, type: str, payload: Mapping[str, Any] | None = None) -> None:
        """Tell every listener; one that raises is reported to the others and breaks nothing."""
        self.tell(HOST_ID, type, payload)

    def tell(self, source: str, type: str, payload: Mapping[str, Any] | None) -> None:
        """Tell every listener what a source has to say."""
        if not type.strip():
            raise ValueError("an event's type is not blank")
        if self._listeners:
            self._publish(LifecycleEvent(source, type, payload or {}))

    def _publish(self, event: LifecycleEvent) -> None:
        for key, listener in list(self._listeners.items()):
            if key not in self._listeners:
                continue
            try:
                listener(event)
            except Exception as error:
                # The report of a listener that fails on a report would never end.
                if event.type != LISTENER_FAILED:
                    details = {"event": event, "error": error}
                    self._publish(LifecycleEvent(LIFECYCLE_ID, LISTENER_FAILED, details))


class CapabilityEvents:
    """The same events, as one capability sees them: what it emits carries its id."""

    def __init__(self, events: LifecycleEvents, source: str) -> None:
        self._events, self._source = events, source

    def emit(self, type: str, payload: Mapping[str, Any] | None = None) -> None:
        """Tell every listener, in this capability's name."""
        self._events.tell(self._source, type, payload)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Hear every event of the lifecycle; return what ends that."""
        return self._events.subscribe(listener)


class CapabilityContext:
    """What a capability is given: the conversation's name and storage, events, and readiness."""

    def __init__(self, lifecycle: "Lifecycle", name: str, storage: Storage, source: str) -> None:
        self._lifecycle = lifecycle
        self.name, self.storage = name, storage
        self.events = CapabilityEvents(lifecycle.events, source)

    async def ready(self) -> None:
        """Start the host if needed, and wait for that."""
        await self._lifecycle.ready()

    def is_started(self) -> bool:
        """Whether startup has completed."""
        return self._lifecycle.is_started()


class LifecycleCapability:
    """Something a host can do, usable in any host; derive from it.

    Its id names it in events and is unique within a lifecycle.
    """

    def __init__(self, capability_id: str) -> None:
        if not capability_id.strip():
            raise ValueError("a capability's id is not blank")
        if capability_id in (HOST_ID, LIFECYCLE_ID):
            raise ValueError(f"a capability's id cannot be {capability_id!r}")
        self._capability_id = capability_id
        self._context: CapabilityContext | None = None

    @property
    def capability_id(self) -> str:
        """The id, as events carry it."""
        return self._capability_id

    @property
    def lifecycle(self) -> CapabilityContext:
        """What the lifecycle gave it.

        Raises: RuntimeError before `Lifecycle.use`.
        """
        if self._context is None:
            raise RuntimeError(f"install {type(self).__name__} with Lifecycle.use() before use")
        return self._context

    def bind(self, context: CapabilityContext) -> None:
        """Take what the lifecycle gives; called by `Lifecycle.use`, override to prepare."""
        if self._context is not None:
            raise RuntimeError(f"capability {self._capability_id!r} is installed already")
        self._context = context

    async def on_start(self) -> None:
        """Do what must be done before the first call; runs again after a failed startup."""

    async def on_dispose(self) -> None:
        """Let go of what was taken, even if startup failed or never ran."""


class Lifecycle:
    """One host's lifecycle; see the module. Made by `Lifecycle.install(host)`."""

    def __init__(self, host: DurableObject) -> None:
        self._host = host
        self._token = object()
        self._capabilities: list[LifecycleCapability] = []
        self._capabilities_started = False
        self._started = False
        self._locked = False
        self._startup: asyncio.Task[None] | None = None
        self._disposal: asyncio.Task[None] | None = None
        self._events = LifecycleEvents()

    @classmethod
    def install(cls, host: DurableObject) -> Self:
        """Give a host its lifecycle, once.

        Raises: RuntimeError when it has one already, or was not given its state yet.
        """
        if not hasattr(host, "_state"):
            raise RuntimeError("call super().__init__(state) before Lifecycle.install(self)")
        if host.installed_lifecycle is not None:
            raise RuntimeError(f"{type(host).__name__} {host.name!r} has a lifecycle already")
        lifecycle = cls(host)
        host.installed_lifecycle = lifecycle
        return lifecycle

    @property
    def events(self) -> LifecycleEvents:
        """What happens in this lifecycle."""
        return self._events

    def use(self, capability: LifecycleCapability) -> Self:
        """Add a capability; return the lifecycle, for the next.

        Raises: RuntimeError after startup began, or when its id is taken.
        """
        if self._locked:
            raise RuntimeError("capabilities are added before startup")
        identity = capability.capability_id
        if any(other.capability_id == identity for other in self._capabilities):
            raise RuntimeError(f"capability {identity!r} is installed already")
        state = self._host.state
        capability.bind(CapabilityContext(self, state.name, state.storage, identity))
        self._capabilities.append(capability)
        return self

    def is_started(self) -> bool:
        """Whether startup has completed."""
        return self._started

    async def start(self) -> None:
        """Start capabilities, then the host; at once when that is done.

        Cancelling one caller does not stop the startup the others share.
        Raises: what the failing `on_start` raised; RuntimeError after `dispose`.
        """
        if self._disposal is not None:
            raise RuntimeError(f"{type(self._host).__name__} {self._host.name!r} is disposed")
        if self._started or self._is_inside_startup():
            return
        if self._startup is None:
            self._locked = True
            self._startup = asyncio.create_task(self._run_startup())
            self._startup.add_done_callback(self._forget_startup)
        await asyncio.shield(self._startup)

    async def ready(self) -> None:
        """Start if needed, and wait for that: what every call into the host does first."""
        if not self._started:
            await self.start()

    async def dispose(self) -> None:
        """Dispose of capabilities in reverse order, once; a startup under way ends first.

        Every one is disposed of even if another fails.
        Raises: what failed, as an ExceptionGroup; RuntimeError from within startup.
        """
        if self._is_inside_startup():
            raise RuntimeError("startup cannot dispose of itself")
        if self._disposal is None:
            self._locked = True
            self._disposal = asyncio.create_task(self._run_disposal())
        await asyncio.shield(self._disposal)

    def _is_inside_startup(self) -> bool:
        return self._startup is not None and self._token in _starting.get()

    def _forget_startup(self, startup: asyncio.Task[None]) -> None:
        self._startup = None
        if not startup.cancelled():
            # The callers may all have been cancelled: nobody need retrieve it.
            startup.exception()

    async def _run_startup(self) -> None:
        # This runs in a task of its own, so the mark ends with it.
        _starting.set(_starting.get() | {self._token})
        if not self._capabilities_started:
            for capability in self._capabilities:
                await capability.on_start()
            self._capabilities_started = True
        await self._host.on_start()
        self._started = True

    async def _run_disposal(self) -> None:
        if self._startup is not None:
            await asyncio.wait([self._startup])
        self._started = False
        failures: list[Exception] = []
        for capability in reversed(self._capabilities):
            try:
                await capability.on_dispose()
            except Exception as error:
                failures.append(error)
        if failures:
            raise ExceptionGroup("capabilities failed to dispose", failures)
