"""Which leases this router granted to nodes, and when they have certainly run out. Pure.

Rules:
- A grant counts from when its request arrived here; the node counts it from when it asked, so it
  gives up first. Only this process's clock is read, and it never goes back.
- A router that has just started knows nothing of its predecessor's grants: every node that it has
  heard of may hold one for a whole `ttl_s`.
- A term ends only after its lease ran out; who waits for that has the node renew nothing. From then
  on the node is granted the next term, and who was bound in an earlier one is not the owner of
  anything. The caller makes the new term durable before it gives a conversation to anyone else.

Methods may be called from several threads. What it does not do: decide which nodes are alive.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

FIRST_TERM: Final = 1
# A node whose lease has less than this part left does not renew it: it is looked after, and new
# conversations go elsewhere.
LEASE_LOW: Final = 0.5


class Grant(NamedTuple):
    """A node's right to acknowledge in a term, for so long from when it asked."""

    term: int
    ttl_s: float


class Leases:
    """The leases of all nodes.

    Args: `now` returns seconds of a clock that goes on while this machine sleeps.
    """

    def __init__(self, ttl_s: float, now: Callable[[], float]) -> None:
        self.ttl_s, self._now = ttl_s, now
        self._terms: dict[str, int] = {}
        self._until: dict[str, float] = {}
        self._withheld: Counter[str] = Counter()
        self._renewals = 0
        self._lock = threading.Lock()

    def expect(self, node_id: str, term: int) -> None:
        """Learn of a node that an earlier router may have granted a lease just now."""
        with self._lock:
            self._terms[node_id] = term
            self._until.setdefault(node_id, self._now() + self.ttl_s)

    def renew(self, node_id: str) -> Grant | None:
        """Grant a node its lease, from now on, in its present term; None while it is withheld."""
        with self._lock:
            if self._withheld[node_id]:
                return None
            term = self._terms.setdefault(node_id, FIRST_TERM)
            self._until[node_id] = self._now() + self.ttl_s
            self._renewals += 1
            return Grant(term, self.ttl_s)

    @contextlib.contextmanager
    def withhold(self, node_id: str) -> Iterator[None]:
        """Renew nothing for a node meanwhile, so that its lease runs out although it lives."""
        with self._lock:
            self._withheld[node_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._withheld[node_id] -= 1

    @property
    def renewals(self) -> int:
        """How many times a lease was granted."""
        return self._renewals

    def term(self, node_id: str) -> int:
        """Return a node's present term."""
        return self._terms.get(node_id, FIRST_TERM)

    def left_s(self, node_id: str) -> float:
        """Return for how long a node may still hold its lease; 0 when it cannot.

        A node that was never heard of may have been granted one by an earlier router; ask
        `expect` for those that such a router could know.
        """
        return max(0.0, self._until.get(node_id, 0.0) - self._now())

    def end_term(self, node_id: str) -> int | None:
        """Begin a node's next term, whose number is returned; None while its lease stands."""
        with self._lock:
            if self._until.get(node_id, 0.0) > self._now():
                return None
            term = self._terms[node_id] = self._terms.get(node_id, FIRST_TERM) + 1
            return term

    def forget(self, node_id: str) -> None:
        """Drop a node that is gone for good."""
        with self._lock:
            self._terms.pop(node_id, None)
            self._until.pop(node_id, None)
