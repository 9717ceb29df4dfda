"""Every block of code in README.md and deploy/docs runs, page by page, as a reader would run it.

How blocks are run says `reader`. Each page has a process, a storage root and a router of its own,
on one private cluster.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .blocks import blocks_of
from .reader import RUN

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "deploy" / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
# Blocks that do not run, each with its reason in the page: a new one has to be counted here.
NOT_RUN = 8
PAGE_S = 240


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert all(block.language for block in blocks), "a block names its language"
    not_run = [block for block in blocks if block.not_run]
    assert len(not_run) == NOT_RUN, [f"{block}: {block.not_run}" for block in not_run]


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that workers import from."""
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="module")
def environment(modules: Path) -> Iterator[dict[str, str]]:
    """What a process needs to reach a private cluster of one node."""
    from ray._common.utils import get_ray_address_file
    from ray.cluster_utils import Cluster

    path = os.pathsep.join([str(modules), str(ROOT)])
    node = {"num_cpus": 4, "include_dashboard": False, "env_vars": {"PYTHONPATH": path}}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    Path(get_ray_address_file(None)).unlink(missing_ok=True)  # it is ours alone
    yield {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": path,
        "RAY_ADDRESS": cluster.address,
        "SESSIONS_ACTOR_ADDRESS": cluster.address,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "COLUMNS": "120",
    }
    cluster.shutdown()


def runs(page: Path) -> bool:
    """Tell whether a page holds anything to run."""
    return any(block.language in RUN and not block.not_run for block in blocks_of(page))


@pytest.mark.parametrize(
    "page", [*filter(runs, PAGES)], ids=lambda page: str(page.relative_to(ROOT).with_suffix(""))
)
def test_a_page_runs(
    page: Path, environment: dict[str, str], modules: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.reader", str(page), str(modules)],
        cwd=tmp_path,
        env={**environment, "SESSIONS_ACTOR_STORAGE_ROOT": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=PAGE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert int(done.stdout.split()[-1]) > 0
