"""The error tree: who descends from whom, what each carries, and that all of it pickles."""

import pickle

import pytest

from sessions_actor import errors
from sessions_actor.errors import (
    ERRORS,
    ConversationNotFoundError,
    LeaseMissingError,
    MigratingError,
    MigrationFailedError,
    NoCapacityError,
    NothingToRestoreError,
    OutputGateBrokenError,
    OverloadedError,
    QuotaExceededError,
    RemoteCallError,
    ReplicaUnavailableError,
    RoutingError,
    SessionsActorError,
    StaleEpochError,
    StorageCorruptError,
    StorageError,
)

EXAMPLES = [
    SessionsActorError("x"),
    StorageError("/a/b.sqlite", "permission denied"),
    QuotaExceededError(90, 100),
    QuotaExceededError(90, 100, "/a/b.sqlite"),
    NothingToRestoreError("/a/b.sqlite", "its replica begins later"),
    StorageCorruptError("/a/b.sqlite", "file is not a database"),
    RoutingError("x"),
    StaleEpochError(3, 5),
    MigratingError("alice", 0.25),
    LeaseMissingError("alice", 1.0),
    OverloadedError(1000, 900),
    NoCapacityError(4),
    ReplicaUnavailableError("connection refused", 10.0),
    OutputGateBrokenError("/a/b.sqlite", "disk I/O error"),
    ConversationNotFoundError("alice"),
    MigrationFailedError("alice", "verify", "digests differ"),
    RemoteCallError("app.Boom", "it broke"),
]


def test_errors_lists_every_class() -> None:
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert set(ERRORS) == defined == {type(error) for error in EXAMPLES}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickle(error: SessionsActorError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.args == error.args
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert str(error)


def test_retryable_is_what_routing_failed() -> None:
    assert {error for error in ERRORS if error.retryable} == {
        RoutingError,
        StaleEpochError,
        MigratingError,
        LeaseMissingError,
        OverloadedError,
        NoCapacityError,
        ReplicaUnavailableError,
    }


def test_storage_errors_carry_their_path() -> None:
    for error in EXAMPLES:
        if isinstance(error, StorageError):
            assert error.path in ("", "/a/b.sqlite")
            assert error.path in str(error)


def test_quota_carries_both_numbers() -> None:
    error = QuotaExceededError(90, 100)
    assert (error.used_bytes, error.limit_bytes, error.path) == (90, 100, "")
    assert "90 of 100 bytes" in str(error)


def test_texts_say_what_to_do() -> None:
    assert "resolve the conversation again" in str(StaleEpochError(3, 5))
    assert "retry in 0.25 s" in str(MigratingError("alice", 0.25))
    assert "delete messages or raise the quota" in str(QuotaExceededError(1, 1))
