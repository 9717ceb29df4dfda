"""Options of the whole test suite."""

import os
from pathlib import Path

import hypothesis
import pytest

# How long an example takes says how busy the machine is, and nothing about what it shows.
hypothesis.settings.register_profile(
    "no clock", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("no clock")

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that make a run long or give it the reference."""
    group = parser.getgroup("sessions-actor")
    group.addoption(
        "--long",
        action="store_true",
        help="run the generated tests at full length (at least 200,000 steps; tens of minutes)",
    )
    group.addoption(
        "--reference",
        metavar="FOLDER",
        default=os.environ.get("SESSIONS_ACTOR_REFERENCE"),
        help="a folder in which the reference is (or may be) installed by npm; without it the"
        " tests that drive the reference are skipped",
    )


@pytest.fixture(scope="session")
def long_run(request: pytest.FixtureRequest) -> bool:
    """Say whether ``--long`` was given."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Find the folder of recordings and data beside the repository, or skip."""
    if not SHARED.is_dir():
        pytest.skip("the folder of recordings is not beside this repository")
    return SHARED
