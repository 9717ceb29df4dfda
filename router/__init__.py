"""Many conversations: a directory, activation, migration, and the client that people use."""

from typing import TYPE_CHECKING, Any

from .settings import Settings

if TYPE_CHECKING:
    from .client import Client, connect
    from .models import (
        BackupReport,
        ConversationInfo,
        JobInfo,
        JobReport,
        MigrationProgress,
        MigrationReport,
        NodeInfo,
        RestorePoint,
        RestoreReport,
    )
    from .sync import SyncClient, connect_sync

__all__ = [
    "BackupReport",
    "Client",
    "ConversationInfo",
    "JobInfo",
    "JobReport",
    "MigrationProgress",
    "MigrationReport",
    "NodeInfo",
    "RestorePoint",
    "RestoreReport",
    "Settings",
    "SyncClient",
    "connect",
    "connect_sync",
]

# Ray takes a second to import: a program that only asks for settings does without.
_HOMES = {
    "Client": "client",
    "connect": "client",
    "SyncClient": "sync",
    "connect_sync": "sync",
} | dict.fromkeys(
    (
        "BackupReport",
        "ConversationInfo",
        "JobInfo",
        "JobReport",
        "MigrationProgress",
        "MigrationReport",
        "NodeInfo",
        "RestorePoint",
        "RestoreReport",
    ),
    "models",
)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
