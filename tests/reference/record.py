"""Write the expected answers of scenarios from the reference.

    python -m tests.reference.record FOLDER NAME...

Each scenario is run twice on fresh objects; what the two runs do not agree on becomes "<any>".
A step that says "why" keeps its expected answer: there ours is the right one.
"""

import argparse
import asyncio
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conformance import scenario
from tests.conformance.scenario import ANY, Answer, Step
from tests.reference.client import ReferenceClient, ReferenceConversation
from tests.reference.server import ReferenceServer

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
NAME_UNITS_MIN = 8  # a saved value shorter than this is no generated id

Run = list[tuple[Answer, dict[str, Any]]]


async def run(steps: Sequence[Step], client: ReferenceClient) -> Run:
    """Answer every step on a fresh object, with what was saved up to then."""
    conversation = ReferenceConversation(client, f"record-{uuid.uuid4()}")
    saved: dict[str, Any] = {}
    return [(await scenario.answer(step, conversation, saved), dict(saved)) for step in steps]


def record(steps: Sequence[Step], first: Run, second: Run) -> None:
    """Set every step's expected answer to what the two runs agree on."""
    for step, (a, saved_a), (b, saved_b) in zip(steps, first, second, strict=True):
        if step.why is not None:
            continue
        for pointer in set(step.save.values()) - set(step.relative):
            box, key = scenario.locate(a, pointer)
            box[key] = ANY
        known = saved_a.keys() - step.save.keys()
        step.expect = generalize(a, b, {name: (saved_a[name], saved_b[name]) for name in known})


def generalize(first: Any, second: Any, names: dict[str, tuple[Any, Any]]) -> Any:
    """Keep what two answers agree on; saved values become their names, the rest "<any>"."""
    if isinstance(first, dict) and isinstance(second, dict) and list(first) == list(second):
        if "error" in first and len(first) == 1:
            return {"error": str(first["error"]).split(":")[0] + ": " + ANY}
        return {key: generalize(first[key], second[key], names) for key in first}
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return [generalize(a, b, names) for a, b in zip(first, second, strict=True)]
    if isinstance(first, str) and isinstance(second, str):
        for name, (a, b) in names.items():
            if isinstance(a, str) and len(a) > NAME_UNITS_MIN:
                first = first.replace(a, f"{{{{{name}}}}}")
                second = second.replace(b, f"{{{{{name}}}}}")
        first, second = UUID.sub(ANY, first), UUID.sub(ANY, second)
    return first if first == second and type(first) is type(second) else ANY


async def rewrite(names: Sequence[str], base: str) -> None:
    """Record the named scenarios in place."""
    client = ReferenceClient(base)
    for name in names:
        path = scenario.SCENARIOS / f"{name}.jsonl"
        steps = scenario.load(path)
        record(steps, await run(steps, client), await run(steps, client))
        scenario.dump(path, steps)
        print(f"recorded {name}: {len(steps)} steps")
    client.close()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where the reference is or will be installed")
    parser.add_argument("names", nargs="+", help="scenario names")
    options = parser.parse_args()
    with ReferenceServer(options.folder) as server:
        asyncio.run(rewrite(options.names, server.base))


if __name__ == "__main__":
    main()
