"""The checks beside the tests see what they are for: loose packages and secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from .. import audit

detect_secrets = pytest.importorskip("detect_secrets")


def test_the_packages_are_in_order() -> None:
    assert audit.faults() == []


def test_a_package_that_is_not_pinned_or_too_old_or_out_of_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pins = audit.pinned()
    del pins["orjson"]
    pins["requests"] = Version("2.31.0")
    pins["ray"] = Version("2.40.0")
    monkeypatch.setattr(audit, "pinned", lambda: pins)
    found = "\n".join(audit.faults())
    assert "does not pin orjson" in found
    assert "pins requests 2.31.0, below 2.32.4" in found
    assert "pins ray 2.40.0, outside >=" in found


def test_a_bound_that_is_missing_or_reaches_below_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    loose = [Requirement("ray>=2.40"), Requirement("typer")]
    monkeypatch.setattr(audit, "bounds", lambda: loose)
    found = "\n".join(audit.faults())
    assert "allows ray 2.40" in found
    assert "gives typer no lower bound" in found


def test_a_line_that_is_no_pin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text("# fine\nray>=2.52\n")
    monkeypatch.setattr(audit, "CONSTRAINTS", file)
    with pytest.raises(ValueError, match="no pin: ray"):
        audit.pinned()


def test_a_secret_is_found_by_its_form_and_never_shown(tmp_path: Path) -> None:
    from .. import secret_scan

    # Put together here, so that this file holds none.
    planted = {
        "key.pem": "-----BEGIN RSA " + "PRIVATE KEY-----\n",
        "aws.py": 'key = "AKIA' + "IOSFODNN7EXAMPLF" + '"\n',
        "gh.txt": "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8" + "\n",
        "fine.py": "token = os.environ['TOKEN']\n",
    }
    for name, text in planted.items():
        (tmp_path / name).write_text(text)
    files = sorted(tmp_path.iterdir())
    suspected = secret_scan.suspected(files)
    assert {file.name for file in suspected} == set(planted) - {"fine.py"}
    found = list(secret_scan.scan(suspected, [{"name": name} for name in secret_scan.KEYS]))
    assert len(found) == 3
    assert "IOSFODNN" not in "".join(found)
