"""Image, compose, systemd and `ray up`: valid by the published schemas and checkers, and safe."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
from importlib import resources
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from . import shapes
from .shapes import DEPLOY, ROOT

DOCKERFILE = DEPLOY / "docker/Dockerfile"


# ------------------------------------------------------------------------------------ compose


def test_compose_fits_its_schema() -> None:
    pytest.importorskip("check_jsonschema")
    text = (
        resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    ).read_text()
    schema = json.loads(text)
    jsonschema.validate(shapes.compose(), schema)
    broken = shapes.compose()
    broken["services"]["head"]["post_starts"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


def test_compose_makes_three_nodes_with_a_disk_and_the_token() -> None:
    spec = shapes.compose()
    services = spec["services"]
    assert len(services) == 3
    disks = [volume.split(":")[0] for one in services.values() for volume in one["volumes"]]
    assert sorted(disks) == sorted(spec["volumes"])
    assert len(set(disks)) == 3
    for name, one in services.items():
        environment = one["environment"]
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray-token"
        assert one["secrets"] == ["ray-token"]
        assert environment["SESSIONS_ACTOR_STORAGE_ROOT"].startswith("/srv/")
        assert one["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", [])), name
        assert (one["build"]["context"], one["build"]["dockerfile"]) == (
            "../..",
            "deploy/docker/Dockerfile",
        )
    token = "deploy/docker/ray-token"
    ignored = subprocess.run(["git", "check-ignore", "-q", token], cwd=ROOT).returncode == 0
    assert ignored, "the token that compose reads is never committed"


# -------------------------------------------------------------------------------------- image


def _instructions() -> list[tuple[str, str]]:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word.upper(), rest.strip()) for word, _, rest in (x.partition(" ") for x in lines)]


def test_the_image_is_pinned_slim_and_runs_as_nobody_special() -> None:
    found = _instructions()
    (base,) = [rest for word, rest in found if word == "ARG" and rest.startswith("BASE=")]
    assert re.fullmatch(r"BASE=python:\d+\.\d+\.\d+-slim-\w+", base)
    assert all(rest.split()[0] == "${BASE}" for word, rest in found if word == "FROM")
    assert [rest for word, rest in found if word == "USER"] == ["1000:1000"]
    installs = [rest for word, rest in found if word == "RUN" and "pip install" in rest]
    assert installs
    assert all("-c constraints.txt" in rest for rest in installs)
    assert not [rest for word, rest in found if word == "ADD"]
    assert "RAY_AUTH_MODE=token" in DOCKERFILE.read_text()


def test_the_image_takes_only_files_that_are_there_and_let_through() -> None:
    ignore = (DEPLOY / "docker/Dockerfile.dockerignore").read_text().splitlines()
    assert ignore[0] == "*"
    through = {line[1:] for line in ignore if line.startswith("!")}
    copied = [rest.split() for word, rest in _instructions() if word == "COPY"]
    sources = [s for words in copied if "--from=build" not in words for s in words[:-1]]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in through
    assert through == set(sources)


def test_the_linter_of_dockerfiles_has_nothing_to_say() -> None:
    program = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, DOCKERFILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# ------------------------------------------------------------------------------------ systemd


def _settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for _, key, value in shapes.systemd_unit():
        found.setdefault(key, []).append(value)
    return found


def test_the_unit_keeps_its_files_and_the_token_to_itself() -> None:
    unit = _settings()
    assert {section for section, _, _ in shapes.systemd_unit()} == {"Unit", "Service", "Install"}
    environment = dict(one.split("=", 1) for one in unit["Environment"])
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == "%d/ray-token"
    assert unit["LoadCredential"] == ["ray-token:/etc/sessions-actor/ray-token"]
    assert unit["User"] != ["root"]
    (state,) = unit["StateDirectory"]
    for variable in ("SESSIONS_ACTOR_STORAGE_ROOT", "RAY_TMPDIR", "HOME"):
        assert environment[variable].startswith(f"/var/lib/{state}")
    assert unit["StateDirectoryMode"] == ["0700"]
    assert unit["UMask"] == ["0077"]
    # Ray's sockets lie three folders down, and a socket's path has at most 107 bytes.
    session = "ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.99"
    assert len(f"{environment['RAY_TMPDIR']}/{session}") <= 107


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / "systemd/sessions-actor.service").read_text()
    # It looks whether programs and users are there, which on this machine they need not be.
    here = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE)
    here = here.replace("User=sessions\nGroup=sessions\n", "User=daemon\nGroup=daemon\n")
    assert f"ExecStart={sys.executable} --address" in here
    assert "User=daemon" in here
    unit = tmp_path / "sessions-actor.service"
    unit.write_text(here)
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "sessions-actor" in line]
    assert done.returncode == 0, done.stderr
    assert said == []
    exposure = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=30", unit],
        capture_output=True, text=True,
    )  # fmt: skip
    if "unrecognized option" not in exposure.stderr:
        assert exposure.returncode == 0, exposure.stdout[-400:]


# ------------------------------------------------------------------------------------- ray up


def test_ray_up_fits_rays_schema_and_ray_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray.autoscaler
    from ray.autoscaler._private.util import prepare_config, validate_config

    config: dict[str, Any] = shapes.ray_up()
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    monkeypatch.setenv("RAY_TMPDIR", "/nonexistent")
    validate_config(prepare_config(config))
    for path in config["file_mounts"].values():
        assert path.startswith("~") or (ROOT / path).exists()
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    assert all(line.startswith(". ~/sessions.env && ") for line in starts)
    environment = (DEPLOY / "ray-up/sessions.env").read_text()
    assert "export RAY_AUTH_MODE=token\n" in environment
    assert "~/.ray/auth_token" in config["file_mounts"]


# -------------------------------------------------------------------------------- what is not


@pytest.mark.parametrize("package", ["kubernetes-validate", "check-jsonschema"])
def test_the_checkers_are_part_of_the_development_setup(package: str) -> None:
    """A check that is skipped everywhere is none."""
    wanted = (ROOT / "pyproject.toml").read_text()
    assert f'"{package}>=' in wanted
    try:
        distribution(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed here: pip install -e '.[dev]'")


def test_nothing_in_deploy_is_open_to_others_or_names_an_address() -> None:
    for path in DEPLOY.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o002, path
