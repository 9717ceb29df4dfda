"""Every metric there is: its name, what it means, its labels. Pure.

Names follow Prometheus: `_total` for what only rises, the unit (`_seconds`, `_bytes`) before it.
Labels are methods, outcomes, kinds, classes of errors and nodes; a conversation's name is never
one: the logs have it. Ray exports each as `ray_<name>`, with the labels `node` and `role` added.
"""

from typing import Final

from .telemetry import Counter, Gauge, Histogram, Registry

ROUTER: Final = "router"

REGISTRY: Final = Registry()
_add = REGISTRY.add

# From a tenth of a millisecond to a minute; a call in a warm conversation takes about one.
_SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_SHORT_SECONDS: Final = _SECONDS[:12]
_LONG_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# ---------------------------------------------------------------------------------- calls

CALLS = _add(
    Counter("sessions_actor_calls_total", "Calls that an actor carried out", ("method", "outcome"))
)
CALL_SECONDS = _add(
    Histogram(
        "sessions_actor_call_seconds",
        "Time of a call in its actor, until what it wrote is durable",
        _SECONDS,
        ("access",),
    )
)
PENDING_CALLS = _add(
    Gauge("sessions_actor_pending_calls", "Calls under way in the actor's conversation")
)
ERRORS = _add(
    Counter("sessions_actor_errors_total", "Errors that callers were given, by class", ("type",))
)
EVENTS = _add(
    Counter("sessions_actor_events_total", "Lifecycle events, by type", ("source", "type"))
)

# -------------------------------------------------------------------------------- commits

GATE_WAIT_SECONDS = _add(
    Histogram(
        "sessions_actor_gate_wait_seconds",
        "From a group's first write until the group is durable",
        _SHORT_SECONDS,
    )
)
COMMIT_SECONDS = _add(
    Histogram("sessions_actor_commit_seconds", "Time of a commit with its fsync", _SHORT_SECONDS)
)
COMMIT_OPS = _add(
    Histogram("sessions_actor_commit_ops", "Operations that shared one commit", _COUNTS)
)
ROWS_WRITTEN = _add(
    Counter("sessions_actor_rows_written_total", "Rows inserted, updated and deleted, committed")
)
GATE_BROKEN = _add(
    Counter(
        "sessions_actor_gate_broken_total",
        "Output gates that broke, by error",
        ("type",),
        known=[["OutputGateBrokenError", "StaleEpochError"]],
    )
)
FENCED = _add(
    Counter("sessions_actor_fenced_total", "Activations ended by a later owner or a lapsed lease")
)

# ------------------------------------------------------------------------------- the file

CONVERSATION_BYTES = _add(
    Gauge("sessions_actor_conversation_bytes", "Bytes in use in the actor's conversation")
)
QUOTA_RATIO = _add(
    Gauge("sessions_actor_quota_used_ratio", "Bytes in use as a part of the conversation's quota")
)
DISK_FREE_BYTES = _add(Gauge("sessions_actor_disk_free_bytes", "Free bytes under the storage root"))
DISK_SIZE_BYTES = _add(
    Gauge("sessions_actor_disk_size_bytes", "Size of the file system of the root")
)

# --------------------------------------------------------------------------- conversations

ACTIVATIONS = _add(
    Counter(
        "sessions_actor_activations_total",
        "Activations that serve, of new conversations and of those that hibernated",
        ("kind",),
        known=[["new", "wake"]],
        role=ROUTER,
    )
)
ACTIVATION_SECONDS = _add(
    Histogram(
        "sessions_actor_activation_seconds",
        "From the need for an owner until it serves, the wait for an actor included",
        _SECONDS,
        ("kind",),
        role=ROUTER,
    )
)
ACTIVATIONS_FAILED = _add(
    Counter(
        "sessions_actor_activations_failed_total",
        "Activations that failed, by error",
        ("type",),
        known=[["NoCapacityError", "StorageError"]],
        role=ROUTER,
    )
)
HIBERNATIONS = _add(
    Counter(
        "sessions_actor_hibernations_total",
        "Conversations put to sleep, by reason",
        ("reason",),
        known=[["idle", "evicted", "asked"]],
        role=ROUTER,
    )
)
OWNERS_LOST = _add(
    Counter(
        "sessions_actor_owners_lost_total",
        "Owners that died, froze or lost their file",
        role=ROUTER,
    )
)
CONVERSATIONS = _add(
    Gauge("sessions_actor_conversations", "Conversations in the directory", ("state",), role=ROUTER)
)

# --------------------------------------------------------------------------------- actors

ACTORS = _add(
    Gauge("sessions_actor_actors", "Actor processes of a node", ("node", "state"), role=ROUTER)
)
ACTORS_MAX = _add(
    Gauge(
        "sessions_actor_actors_max", "Actor processes that a node may hold", ("node",), role=ROUTER
    )
)
NODE_DRAINING = _add(
    Gauge(
        "sessions_actor_node_draining", "Whether a node takes nothing new", ("node",), role=ROUTER
    )
)
ACTOR_WAIT_SECONDS = _add(
    Histogram("sessions_actor_actor_wait_seconds", "Wait for a free actor", _SECONDS, role=ROUTER)
)
ACTORS_STARTED = _add(
    Counter(
        "sessions_actor_actors_started_total",
        "Actor processes started",
        ("outcome",),
        known=[["ok", "error"]],
        role=ROUTER,
    )
)
NO_CAPACITY = _add(
    Counter(
        "sessions_actor_no_capacity_total",
        "Activations and moves for which no actor became free",
        role=ROUTER,
    )
)

# ------------------------------------------------------------------------------ migrations

MIGRATIONS = _add(
    Counter(
        "sessions_actor_migrations_total",
        "Migrations that ended, by outcome",
        ("outcome",),
        known=[["moved", "failed", "cancelled"]],
        role=ROUTER,
    )
)
MIGRATIONS_RUNNING = _add(
    Gauge("sessions_actor_migrations_running", "Migrations under way", role=ROUTER)
)
MIGRATION_PHASE_SECONDS = _add(
    Histogram(
        "sessions_actor_migration_phase_seconds",
        "Time of one phase of a migration",
        _LONG_SECONDS,
        ("phase",),
        role=ROUTER,
    )
)
MIGRATION_STALL_SECONDS = _add(
    Histogram(
        "sessions_actor_migration_stall_seconds",
        "From the seal of a source until its target serves: for so long callers wait",
        _LONG_SECONDS,
        role=ROUTER,
    )
)
MIGRATED_BYTES = _add(
    Counter(
        "sessions_actor_migrated_bytes_total",
        "Bytes that arrived at targets, verified",
        role=ROUTER,
    )
)

# ----------------------------------------------------------------------- router and leases

ROUTER_STARTED = _add(
    Gauge(
        "sessions_actor_router_start_time_seconds",
        "When the router started, Unix time",
        role=ROUTER,
    )
)
LEASE_RENEWALS = _add(
    Counter(
        "sessions_actor_lease_renewals_total",
        "Renewals of a node's lease",
        ("outcome",),
        known=[["granted", "refused"]],
        role=ROUTER,
    )
)
LEASE_REMAINING_RATIO = _add(
    Gauge(
        "sessions_actor_lease_remaining_ratio",
        "What is left of a node's lease, as a part of lease_ttl_s",
        ("node",),
        role=ROUTER,
    )
)
LEASES_LAPSED = _add(
    Counter(
        "sessions_actor_leases_lapsed_total",
        "Leases of nodes that ran out, their terms ended",
        role=ROUTER,
    )
)

NODES_GONE = _add(
    Counter(
        "sessions_actor_nodes_gone_total",
        "Nodes that left the cluster, drained before or lost",
        ("outcome",),
        known=[["drained", "lost"]],
        role=ROUTER,
    )
)

# ----------------------------------------------------------------------------- replication

REPLICATION_LAG_SECONDS = _add(
    Gauge("sessions_actor_replication_lag_seconds", "Age of the oldest write not replicated")
)
REPLICA_SYNC_SECONDS = _add(
    Histogram("sessions_actor_replica_sync_seconds", "Time of a waited replica sync", _SECONDS)
)
REPLICA_SYNCS = _add(
    Counter(
        "sessions_actor_replica_syncs_total",
        "Replica syncs, by outcome",
        ("outcome",),
        known=[["ok", "error"]],
    )
)
