"""How a deployment is set up: one frozen model, every field readable from `SESSIONS_ACTOR_*`.

Fields of the deployment (storage, capacity, the hosted class) count when its router starts; fields
of the client (timeouts) count in the process that connects. Units stand at the end of the names.
"""

import os
import sys
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from sessions_actor.limits import MIB, QUOTA_BYTES_DEFAULT, ClientLimits
from sessions_actor.logs import LogFormat, LogLevel
from sessions_actor.observing import Observing
from sessions_actor.overload import PENDING_BYTES_DEFAULT, PENDING_CALLS_DEFAULT, Bounds
from sessions_actor.replica import Durability

from .replication.paths import ReplicaUrl
from .shards import SHARDS_MAX

QUOTA_BYTES_MIN: Final = MIB // 4
DAY_S: Final = 86_400.0

# Fields that only the process that connects cares about.
CLIENT_FIELDS: Final = frozenset({"call_timeout_s", "log_to_driver"})


def default_storage_root() -> Path:
    """Return the platform's folder for a user's application data, `sessions-actor` below it."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "sessions-actor"


class Settings(BaseSettings):
    """A deployment's settings; each field can be given as `SESSIONS_ACTOR_<FIELD>`."""

    model_config = SettingsConfigDict(
        env_prefix="SESSIONS_ACTOR_", frozen=True, extra="forbid", validate_default=True
    )

    storage_root: Path = Field(default_factory=default_storage_root)
    """Folder of the directory and of every conversation's file, the same path on every node."""

    object_class: str = "sessions_actor.conversation:Conversation"
    """The class that a conversation hosts, as `module:Class`; importable on every node."""

    quota_bytes: int = Field(default=QUOTA_BYTES_DEFAULT, ge=QUOTA_BYTES_MIN)
    """Most bytes of one conversation's file, unless it has a quota of its own."""

    idle_timeout_s: float = Field(default=300.0, gt=0)
    """A conversation that no call reached for this long hibernates."""

    warm_actors: int = Field(default=1, ge=0)
    """Idle actor processes kept ready on each node that serves conversations."""

    max_active: int | None = Field(default=None, ge=1)
    """Most active conversations on one node; None derives it from the node's memory."""

    capacity_wait_s: float = Field(default=30.0, gt=0)
    """How long a call waits for a free actor before it fails with `NoCapacityError`."""

    router_shards: int = Field(default=1, ge=1, le=SHARDS_MAX)
    """Routers that the directory is split over, for good: see `sessions-actor reshard`."""

    lease_ttl_s: float = Field(default=10.0, gt=0)
    """A node acknowledges nothing this long after its last lease; a silent owner is replaced."""

    call_timeout_s: float = Field(default=60.0, gt=0)
    """How long a call is retried and waited for before it fails with `TimeoutError`."""

    max_pending_calls: int = Field(default=PENDING_CALLS_DEFAULT, ge=1)
    """Calls that may wait in one conversation; one more fails at once with `OverloadedError`.

    Counted in the conversation and, apart, in each event loop that calls it.
    """

    max_pending_bytes: int = Field(default=PENDING_BYTES_DEFAULT, ge=1)
    """Bytes of arguments in those calls; past it likewise. A larger call passes on its own."""

    client_message_bytes_max: int | None = Field(default=None, ge=1)
    """Most bytes of JSON of a message that `source="client"` may write; None: no limit."""

    client_parts_max: int | None = Field(default=None, ge=1)
    """Most parts of a message that `source="client"` may write; None: no limit."""

    durability: Durability = Durability.LOCAL
    """What an acknowledged write has survived: `local`, `async` or `replicated`; see README."""

    replica_url: str | None = None
    """Where replicas go: `file:///folder` (it is there), `s3://bucket/path?endpoint=...`; the
    nodes' environment holds the credentials. Needed unless durability is `local`."""

    replica_timeout_s: float = Field(default=10.0, gt=0)
    """How long a write waits for its replica before it fails with `ReplicaUnavailableError`."""

    replica_retention_s: float = Field(default=7 * DAY_S, ge=60)
    """How far back a conversation can be restored."""

    replica_exact_s: float = Field(default=3600.0, ge=1)
    """How far back a restore is exact to the write; before that, to half a minute and more."""

    replica_delete_grace_s: float = Field(default=7 * DAY_S, ge=0)
    """How long the replica of a deleted conversation is kept."""

    actor_cpus: float = Field(default=0.01, gt=0, le=1)
    """Ray CPUs that an actor holds, so that a node with conversations is not taken for idle."""

    metrics: bool = True
    """Whether actors and router send metrics to Ray's Prometheus endpoint."""

    log_format: LogFormat = "json"
    """How actors and router write their events: "json" for programs, "console" for people."""

    log_level: LogLevel = "info"
    """The least that is logged: "debug", "info", "warning" or "error"."""

    tracing: str | None = None
    """What sets up OpenTelemetry in each actor, as `module:function`; see `tracing.otlp`."""

    log_to_driver: bool = False
    """Whether Ray copies what the actors print to the process that connected."""

    @field_validator("storage_root")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("replica_url")
    @classmethod
    def _known_url(cls, value: str | None) -> str | None:
        return None if value is None else str(ReplicaUrl.parse(value))

    @field_validator("object_class", "tracing")
    @classmethod
    def _importable_form(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        module, separator, name = value.partition(":")
        parts = [*module.split("."), *name.split(".")]
        if not separator or not all(part.isidentifier() for part in parts):
            form = (
                "package.module:Class" if info.field_name == "object_class" else "module:function"
            )
            raise ValueError(f"{info.field_name} has the form {form!r}")
        if module == "__main__":
            where = "lives in a module the nodes can import, not __main__"
            raise ValueError(f"{info.field_name} {where}")
        return value

    @model_validator(mode="after")
    def _related(self) -> "Settings":
        if self.max_active is not None and self.warm_actors > self.max_active:
            raise ValueError("warm_actors is at most max_active")
        if self.max_active is not None and self.max_active < self.router_shards:
            raise ValueError("max_active is at least router_shards: each needs an actor")
        if self.router_shards > 1 and self.replica_url is not None:
            raise ValueError(
                "a directory that is replicated has one router: router_shards is 1 with a"
                " replica_url; one that is split already is put together by `sessions-actor"
                " reshard 1`, while nothing serves it"
            )
        if self.durability is not Durability.LOCAL and self.replica_url is None:
            raise ValueError(f"durability {self.durability.value!r} needs a replica_url")
        if self.durability is Durability.LOCAL and self.replica_url is not None:
            raise ValueError("a replica_url needs durability 'async' or 'replicated'")
        return self

    @property
    def observing(self) -> Observing:
        """What each process of the deployment needs to tell what it does."""
        return Observing(self.metrics, self.log_format, self.log_level, self.tracing)

    @property
    def bounds(self) -> Bounds:
        """What may wait in one conversation."""
        return Bounds(self.max_pending_calls, self.max_pending_bytes)

    @property
    def client_limits(self) -> ClientLimits:
        """What every conversation holds clients to, beside what its class sets."""
        return ClientLimits(self.client_message_bytes_max, self.client_parts_max)

    def conflicts(self, running: "Settings") -> dict[str, tuple[Any, Any]]:
        """Return what was asked for explicitly and differs in a running deployment.

        Returns: field -> (asked for, running).
        """
        return {
            field: (getattr(self, field), getattr(running, field))
            for field in sorted(self.model_fields_set - CLIENT_FIELDS)
            if getattr(self, field) != getattr(running, field)
        }
