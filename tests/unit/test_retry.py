"""When a call is made again."""

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, ObjectLostError

from sessions_actor.errors import (
    ConversationNotFoundError,
    LeaseMissingError,
    MigratingError,
    NoCapacityError,
    OutputGateBrokenError,
    OverloadedError,
    QuotaExceededError,
    ReplicaUnavailableError,
    StaleEpochError,
    StorageCorruptError,
    StorageError,
)
from sessions_actor.retry import (
    BACKOFF_MAX_S,
    GATE_TRIES_MAX,
    CutShortError,
    Tries,
    Verdict,
    is_lost,
    judge,
)

REFUSED = [StaleEpochError(1, 2), MigratingError("a", 0.1), LeaseMissingError("a", 0.1)]
LOST = [
    ActorDiedError(),
    ActorUnavailableError("gone", b"x" * 16),
    CutShortError(),
    OutputGateBrokenError("/f", "disk full"),
    ObjectLostError("0" * 56, None, "x"),
]
SEEN = [
    ValueError("x"),
    TypeError("x"),
    OverloadedError(5, 5),
    NoCapacityError(3),
    ReplicaUnavailableError("outage", 10.0),
    QuotaExceededError(2, 1),
    StorageError("/f", "x"),
    StorageCorruptError("/f", "x"),
    ConversationNotFoundError("a"),
    TimeoutError("x"),
]


def test_every_error_has_a_verdict() -> None:
    assert {judge(error) for error in REFUSED} == {Verdict.REFUSED}
    assert {judge(error) for error in LOST} == {Verdict.LOST}
    assert {judge(error) for error in SEEN} == {Verdict.RAISE}


def test_what_was_refused_is_tried_again_even_if_it_must_not_run_twice() -> None:
    for error in REFUSED:
        assert Tries().failed(error, repeatable=False)


def test_what_was_lost_is_tried_again_if_that_does_no_harm() -> None:
    for error in LOST:
        assert Tries().failed(error, repeatable=True)
        assert not Tries().failed(error, repeatable=False)


def test_what_the_caller_should_see_is_not_tried_again() -> None:
    for error in SEEN:
        assert not Tries().failed(error, repeatable=True)


def test_a_gate_that_breaks_again_is_broken_for_good() -> None:
    tries = Tries()
    broken = OutputGateBrokenError("/f", "disk full")
    outcomes = [tries.failed(broken, repeatable=True) for _ in range(GATE_TRIES_MAX)]
    assert outcomes == [True] * (GATE_TRIES_MAX - 1) + [False]


def test_waiting_grows_to_a_bound() -> None:
    tries = Tries()
    waits = []
    for _ in range(30):
        tries.failed(StaleEpochError(1, 2), repeatable=True)
        waits.append(tries.wait_s())
    assert waits[0] == 0
    assert all(0 < wait <= BACKOFF_MAX_S for wait in waits[1:])
    assert waits[-1] >= BACKOFF_MAX_S / 2


@pytest.mark.parametrize("error", [ActorDiedError(), ActorUnavailableError("x", b"y" * 16)])
def test_actors_that_are_gone(error: Exception) -> None:
    assert is_lost(error)
    assert not is_lost(ValueError("x"))
