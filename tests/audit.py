"""The packages we run on: `python -m tests.audit`.

Offline, always: deploy/docker/constraints.txt pins every package that the product needs, to
versions that pyproject.toml allows, and neither the pins nor pyproject's lower bounds reach below
a version with a known hole. FLOORS is what its writers knew when they wrote it, no database.

With `--advisories`, and pip-audit installed: the pins against PyPI's advisories. What could not be
looked up is counted as not audited, never as sound.
"""

from __future__ import annotations

import importlib.metadata as metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "deploy/docker/constraints.txt"
# Extras that the image installs.
EXTRAS = ("metrics", "replication")

FLOORS = {
    "aiohttp": ("3.12.14", "CVE-2025-53643"),
    "apsw": ("3.51.3.0", "SQLite before may corrupt a WAL file; CVE-2025-6965"),
    "certifi": ("2024.7.4", "CVE-2024-39689"),
    "cryptography": ("44.0.1", "CVE-2024-12797"),
    "idna": ("3.7", "CVE-2024-3651"),
    "orjson": ("3.9.15", "CVE-2024-27454"),
    "protobuf": ("6.31.1", "CVE-2025-4565"),
    "pydantic": ("2.4.0", "CVE-2024-3772"),
    "ray": ("2.52.0", "CVE-2025-62593; no token authentication before"),
    "requests": ("2.32.4", "CVE-2024-47081"),
    "urllib3": ("2.6.0", "CVE-2025-66418"),
    "virtualenv": ("20.26.6", "CVE-2024-53899"),
}


def closure(wanted: list[Requirement]) -> Iterator[str]:
    """Yield every package that requirements bring in here, by its canonical name."""
    seen: set[tuple[str, str]] = set()
    stack = [(one.name, extra) for one in wanted for extra in ("", *one.extras)]
    while stack:
        name, extra = stack.pop()
        key = (canonicalize_name(name), extra)
        if key in seen:
            continue
        seen.add(key)
        for text in metadata.distribution(name).requires or []:
            needs = Requirement(text)
            if needs.marker is None or needs.marker.evaluate({"extra": extra}):
                stack += [(needs.name, one) for one in ("", *needs.extras)]
    yield from sorted({name for name, _ in seen})


def pinned() -> dict[str, Version]:
    """Read the pins.

    Raises: ValueError for a line that is no pin.
    """
    found = {}
    for line in CONSTRAINTS.read_text().splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([a-z0-9-]+)==([\w.]+)", line)
            if match is None:
                raise ValueError(f"constraints.txt: no pin: {line}")
            found[match[1]] = Version(match[2])
    return found


def bounds() -> list[Requirement]:
    """Read what pyproject.toml requires of those who run the product."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(text for extra in EXTRAS for text in extras[extra])]
    return [Requirement(text) for text in texts]


def faults() -> list[str]:
    """List what is wrong with the packages, as far as can be seen offline."""
    found, pins = [], pinned()
    for name in closure(bounds()):
        if name not in pins:
            found.append(f"constraints.txt does not pin {name}")
    for needs in bounds():
        name = canonicalize_name(needs.name)
        lower = [Version(one.version) for one in needs.specifier if one.operator in (">=", "==")]
        if not lower:
            found.append(f"pyproject.toml gives {name} no lower bound")
        elif name in FLOORS and max(lower) < Version(FLOORS[name][0]):
            found.append(f"pyproject.toml allows {name} {max(lower)}: {FLOORS[name][1]}")
        if name in pins and pins[name] not in needs.specifier:
            found.append(f"constraints.txt pins {name} {pins[name]}, outside {needs.specifier}")
    for name, (floor, why) in FLOORS.items():
        if name in pins and pins[name] < Version(floor):
            found.append(f"constraints.txt pins {name} {pins[name]}, below {floor}: {why}")
    return found


def advisories() -> tuple[list[str], int, int]:
    """Ask pip-audit about the pins.

    Returns: what it found, how many packages it looked up, how many it could not.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip_audit", "--format=json", "--progress-spinner=off"),
            *("--no-deps", "--disable-pip", "-r", str(CONSTRAINTS)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return [], 0, len(pinned())
    told = [
        f"{one['name']} {one['version']}: {hole['id']}"
        for one in packages
        for hole in one.get("vulns", [])
    ]
    skipped = sum("skip_reason" in one for one in packages)
    return told, len(packages) - skipped, skipped


def main(arguments: list[str]) -> int:
    """Say what is wrong; 0 when nothing is."""
    if arguments == ["--pins"]:
        for name in closure(bounds()):
            print(f"{name}=={metadata.version(name)}")
        return 0
    found = faults()
    if arguments == ["--advisories"]:
        told, looked_up, skipped = advisories()
        found += told
        print(f"advisories: {looked_up} packages looked up, {skipped} not audited")
    for fault in found:
        print(fault, file=sys.stderr)
    if not found:
        print(f"{len(pinned())} packages pinned, none below a version with a hole known here")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
