"""Look at what disks hold and what may move, for a plan that evens them out.

The directory is read in pages, between which others are served; of each disk the largest
conversations are remembered, and all that are active, with the sizes their owners tell.
"""

import asyncio
import heapq
from typing import Final

from .balance import DiskLoad, Held
from .router import Router, Serving

PAGE_ROWS: Final = 1000
# Conversations of one disk that a plan can choose from.
CANDIDATES_MAX: Final = 10_000


async def survey(router: Router) -> tuple[dict[str, DiskLoad], list[Held]]:
    """Return what each disk holds, and the conversations that may move.

    Cost: one walk over the directory, one question to each active conversation.
    """
    serving = {one.name: one for one in router.servings()}
    told = await asyncio.gather(*(_size(router, one) for one in serving.values()))
    sizes = dict(zip(serving, told, strict=True))
    loads: dict[str, tuple[int, int]] = {}
    active: list[Held] = []
    largest: dict[str, list[tuple[int, str]]] = {}
    after: str | None = None
    while page := router.directory.sizes(after, PAGE_ROWS):
        for name, disk, known in page:
            live = sizes.get(name)
            size = known if live is None else live
            held, count = loads.get(disk, (0, 0))
            loads[disk] = (held + size, count + 1)
            if name in serving:
                active.append(Held(name, disk, size, serving[name].slot.node_id))
                continue
            heap = largest.setdefault(disk, [])
            push = heapq.heappush if len(heap) < CANDIDATES_MAX else heapq.heappushpop
            push(heap, (size, name))
        after = page[-1][0]
        await asyncio.sleep(0)
    asleep = [
        Held(name, disk, size) for disk, heap in largest.items() for size, name in sorted(heap)
    ]
    return {disk: DiskLoad(*load) for disk, load in loads.items()}, [*active, *asleep]


async def _size(router: Router, serving: Serving) -> int | None:
    """Ask an owner for the size of its file; None when it does not say."""
    try:
        found = await router.cluster.describe(serving.slot.actor, router.settings.lease_ttl_s)
    except Exception:  # dead or silent: what was known last has to do
        return None
    return found.file_bytes
