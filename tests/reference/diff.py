"""Drive the reference and ours with the same generated steps and report the first difference.

    python -m tests.reference.diff --folder FOLDER [--steps N] [--seed S] [--base URL]

Differences that are accounted for (``kinds``) are counted and listed at the end; any other ends
the run with exit status 1 and the step, both answers, and the command that shows it again.
"""

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from sessions_actor import open_object
from tests.conformance.host import ConformanceObject
from tests.conformance.operations import Conversation, LocalHost
from tests.conformance.scenario import Adapter, Answer, differences, normalize
from tests.reference.client import ReferenceClient, ReferenceConversation
from tests.reference.kinds import KINDS, Seen, kind_of
from tests.reference.server import ReferenceServer, missing_tool
from tests.reference.steps import RISKS, Drawn, Episode

EPISODE_STEPS = 120
SHOWN_UNITS = 1_500

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
PLACE = re.compile(r"<<(\d+)>>")


class Side:
    """One implementation in one episode: it knows the ids it has made itself."""

    def __init__(self, target: Adapter) -> None:
        self.target = target
        self.made: list[str] = []

    async def answer(self, step: Drawn) -> Answer:
        """Run a step; ids it made and times of clocks are replaced by what both agree on."""
        args = json.loads(PLACE.sub(self._id, json.dumps(step.args)))
        raw = await self.target.call(step.op, args, step.session)
        text = TIME.sub("<time>", json.dumps(normalize(raw)))
        compact: Answer = json.loads(UUID.sub(self._name, text))
        return compact

    def _name(self, match: re.Match[str]) -> str:
        if match[0] not in self.made:
            self.made.append(match[0])
        return f"<<{self.made.index(match[0])}>>"

    def _id(self, match: re.Match[str]) -> str:
        index = int(match[1])
        return self.made[index] if index < len(self.made) else f"unknown-{index}"


class Unaccounted(Exception):
    """A difference of no known kind."""


class Run:
    """A differential run: episodes until the steps are done."""

    def __init__(self, reference: Callable[[str], Adapter], seed: int, folder: Path) -> None:
        self.reference, self.seed, self.folder = reference, seed, folder
        self.steps = self.episodes = 0
        self.kinds: Counter[str] = Counter()

    async def go(self, steps: int, first: int = 0) -> None:
        """Run episodes from the ``first`` on until there were that many steps.

        Raises: Unaccounted at the first difference of no known kind.
        """
        while self.steps < steps:
            await self.episode(first + self.episodes, min(EPISODE_STEPS, steps - self.steps))
            self.episodes += 1

    async def episode(self, number: int, steps: int) -> None:
        """Run one episode, to its end or to a difference that parts the two."""
        rng = random.Random(f"{self.seed}:{number}:risks")
        risks = frozenset(rng.sample(RISKS, rng.choice((0, 0, 1, 1, 2))))
        episode = Episode(f"{self.seed}:{number}", risks)
        async with AsyncExitStack() as stack:
            path = self.folder / f"{number}.sqlite"
            mine = await stack.enter_async_context(
                open_object(ConformanceObject, name="diff", path=path)
            )
            ours = Side(Conversation(LocalHost(mine)))
            theirs = Side(self.reference(f"diff-{uuid.uuid4()}"))
            for index in range(steps):
                step = episode.next()
                self.steps += 1
                if await self.differs(step, theirs, ours, episode, f"{number}:{index}"):
                    break
        path.unlink()

    async def differs(
        self, step: Drawn, theirs: Side, ours: Side, episode: Episode, place: str
    ) -> bool:
        """Run one step on both; says whether they have parted."""
        reference, own = await theirs.answer(step), await ours.answer(step)
        if not differences(reference, own, {}):
            return False
        forward = None
        if step.args and isinstance(step.args[0], dict) and step.args[0].get("newestFirst"):
            turned = Drawn("history", [{**step.args[0], "newestFirst": False}], step.session)
            forward = await theirs.answer(turned), await ours.answer(turned)
        seen = Seen(step, reference, own, episode.risks, bool(episode.overlays), forward)
        kind = kind_of(seen)
        if kind is None:
            raise Unaccounted(self.report(step, reference, own, episode, place))
        self.kinds[kind.name] += 1
        return kind.parts

    def report(
        self, step: Drawn, reference: Answer, own: Answer, episode: Episode, place: str
    ) -> str:
        """Say what differs and how to see it again."""
        lines = [
            f"step {place} {step.op} in session {step.session!r}, risks {sorted(episode.risks)}"
        ]
        lines.append(f"  args {json.dumps(step.args)[:SHOWN_UNITS]}")
        for where, want, got in differences(reference, own, {})[:6]:
            lines.append(f"  at {where or '/'}")
            lines.append(f"    reference {json.dumps(want)[:SHOWN_UNITS]}")
            lines.append(f"    ours      {json.dumps(got)[:SHOWN_UNITS]}")
        number = place.split(":")[0]
        lines.append(f"again: --seed {self.seed} --episode {number} --steps {EPISODE_STEPS}")
        return "\n".join(lines)

    def summary(self) -> str:
        """Count the steps and every kind of difference."""
        lines = [f"{self.steps} steps in {self.episodes} episodes, seed {self.seed}"]
        promises = {kind.name: kind.promise for kind in KINDS}
        for name, count in self.kinds.most_common():
            lines.append(f"{count:7}  {name}: {promises[name]}")
        return "\n".join(lines)


async def run(base: str, steps: int, seed: int, first: int = 0) -> Run:
    """Run against a served reference.

    Raises: Unaccounted.
    """
    client = ReferenceClient(base)
    with tempfile.TemporaryDirectory(prefix="reference-diff-") as folder:
        made = Run(lambda name: ReferenceConversation(client, name), seed, Path(folder))
        try:
            await made.go(steps, first)
        except Unaccounted as error:
            raise Unaccounted(f"{error}\n{made.summary()}") from None
        finally:
            client.close()
    return made


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episode", type=int, default=0, help="the first episode to run")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--folder", type=Path, help="where the reference is or will be installed")
    where.add_argument("--base", help="the address of a reference that is served already")
    options = parser.parse_args()
    try:
        if options.base:
            made = asyncio.run(run(options.base, options.steps, options.seed, options.episode))
        else:
            tool = missing_tool()
            if tool is not None:
                print(f"skipped: the reference needs {tool}, which is not installed")
                return 0
            with ReferenceServer(options.folder) as server:
                made = asyncio.run(run(server.base, options.steps, options.seed, options.episode))
    except Unaccounted as error:
        print(error, file=sys.stderr)
        return 1
    print(made.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
