"""When a call is made again, and how soon: the one place that decides.

A call that was refused was not carried out, so it goes to the next owner. A call whose answer was
lost may have been: it is made again when a second run does no harm (every write of a session is
idempotent by id). Anything else is the caller's to see; so is a replica that could not be reached
for as long as the deployment waits for one: only the caller knows what is better than waiting on.
"""

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

import ray.exceptions

from .errors import LeaseMissingError, MigratingError, OutputGateBrokenError, StaleEpochError

BACKOFF_FIRST_S: Final = 0.01
BACKOFF_MAX_S: Final = 0.5

# A gate that breaks again at once is broken for good (a full disk): the caller is told.
GATE_TRIES_MAX: Final = 2

assert BACKOFF_FIRST_S <= BACKOFF_MAX_S


class Verdict(Enum):
    """What an error says about a call."""

    RAISE = "the caller sees it"
    REFUSED = "not carried out: ask the next owner"
    LOST = "may have been carried out: ask the next owner if a second run does no harm"


# Actor and node deaths, lost connections, answers that went with the process that held them.
_LOST_ERRORS: Final = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ObjectLostError,
)


class CutShortError(Exception):
    """The activation ended while the call was under way; never leaves a handle."""


class BoundError(RuntimeError):
    """An actor was given what only an idle one takes: an order came late, or to the wrong one."""


def is_lost(error: BaseException) -> bool:
    """Say whether an error tells that an actor is gone or cannot be reached."""
    return isinstance(error, _LOST_ERRORS)


def is_out_of_reach(error: BaseException) -> bool:
    """Say whether an error leaves it open that the actor is alive: its connection broke."""
    return is_lost(error) and not isinstance(error, ray.exceptions.ActorDiedError)


def judge(error: BaseException) -> Verdict:
    """Say what an error means for the call that met it, on the way or in the answer."""
    if isinstance(error, StaleEpochError | MigratingError | LeaseMissingError):
        return Verdict.REFUSED
    if isinstance(error, OutputGateBrokenError | CutShortError) or is_lost(error):
        return Verdict.LOST
    return Verdict.RAISE


@dataclass(slots=True)
class Tries:
    """The tries of one call: how long to wait before the next, and whether to go on."""

    count: int = 0
    gate_failures: int = 0

    def failed(self, error: BaseException, *, repeatable: bool) -> bool:
        """Note a failed try; says whether the call is made again."""
        self.count += 1
        if isinstance(error, OutputGateBrokenError):
            self.gate_failures += 1
            if self.gate_failures >= GATE_TRIES_MAX:
                return False
        verdict = judge(error)
        return verdict is Verdict.REFUSED or (verdict is Verdict.LOST and repeatable)

    def wait_s(self) -> float:
        """Return how long to wait before the next try: at once at first, then ever longer."""
        if self.count <= 1:
            return 0.0
        bound: float = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self.count - 2, 10))
        return bound * random.uniform(0.5, 1.0)
