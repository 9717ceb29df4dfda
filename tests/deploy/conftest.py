"""Networks of pods for the tests that run what deploy/ says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .pods import Network, why_not


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """An empty network, gone with everything in it after the module's tests."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder: Path = tmp_path_factory.mktemp("pods")
    found = Network(folder)
    yield found
    found.close()
