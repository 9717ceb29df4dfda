"""Each safeguard that is taken away is missed by some seed within its bound."""

from __future__ import annotations

import pytest

from .test_sim import simulate


@pytest.mark.timeout(1300)
def test_every_broken_build_is_caught() -> None:
    code, told = simulate("--mutants", within_s=1200)
    print(told)
    assert code == 0, told
    assert "not caught" not in told
