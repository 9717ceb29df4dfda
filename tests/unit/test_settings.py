"""Settings from arguments and from the environment."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from router import Settings
from router.settings import default_storage_root


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields:
        monkeypatch.delenv(f"SESSIONS_ACTOR_{field.upper()}", raising=False)


def test_every_field_is_readable_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, Any] = {
        "storage_root": "/data",
        "object_class": "myapp:Conversation",
        "quota_bytes": 1_000_000,
        "idle_timeout_s": 1.5,
        "warm_actors": 3,
        "max_active": 7,
        "capacity_wait_s": 2.0,
        "router_shards": 1,
        "lease_ttl_s": 4.0,
        "call_timeout_s": 5.0,
        "max_pending_calls": 9,
        "max_pending_bytes": 10,
        "client_message_bytes_max": 65_536,
        "client_parts_max": 100,
        "durability": "replicated",
        "replica_url": "s3://bucket/path?endpoint=http://127.0.0.1:9000",
        "replica_timeout_s": 6.0,
        "replica_retention_s": 1000.0,
        "replica_exact_s": 100.0,
        "replica_delete_grace_s": 10.0,
        "actor_cpus": 0.5,
        "metrics": False,
        "log_format": "console",
        "log_level": "debug",
        "tracing": "myapp:trace",
        "log_to_driver": True,
    }
    assert set(values) == set(Settings.model_fields)
    for field, value in values.items():
        monkeypatch.setenv(f"SESSIONS_ACTOR_{field.upper()}", str(value))
    found = Settings()
    assert found.model_dump() == values | {"storage_root": Path("/data")}


def test_defaults_stand_in_the_users_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Settings().storage_root == default_storage_root() == tmp_path / "sessions-actor"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert Settings().storage_root == Path("/home/ada/.local/share/sessions-actor")


@pytest.mark.parametrize(
    "wrong",
    [
        {"quota_bytes": 1000},
        {"object_class": "myapp.Conversation"},
        {"object_class": "__main__:Conversation"},
        {"object_class": "my-app:Conversation"},
        {"idle_timeout_s": 0},
        {"max_active": 0},
        {"max_active": 1, "warm_actors": 2},
        {"no_such_setting": 1},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(**wrong)


def test_settings_are_frozen_and_cross_as_json() -> None:
    settings = Settings(storage_root=Path("/data"))
    with pytest.raises(ValidationError):
        settings.warm_actors = 5  # type: ignore[misc]
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


def test_only_what_was_asked_for_conflicts() -> None:
    running = Settings(storage_root=Path("/data"), warm_actors=3)
    assert Settings().conflicts(running) == {}
    assert Settings(call_timeout_s=3).conflicts(running) == {}
    assert Settings(warm_actors=3).conflicts(running) == {}
    assert Settings(warm_actors=4).conflicts(running) == {"warm_actors": (4, 3)}


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("ftp://host/x", "begins with one of"),
        ("relative/path", "begins with one of"),
        ("file://host/path", "absolute path"),
        ("file:///", "absolute path"),
        ("file:///x?y=z", "no options"),
        ("s3:///path", "names no bucket"),
        ("s3://key:secret@bucket/path", "no user"),  # pragma: allowlist secret
        ("s3://bucket/path?access-key-id=abc", "holds no keys"),
    ],
)
def test_an_unusable_replica_url_is_refused(url: str, what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        Settings(durability="replicated", replica_url=url)  # type: ignore[arg-type]


def test_durability_and_replica_url_belong_together() -> None:
    with pytest.raises(ValidationError, match="needs a replica_url"):
        Settings(durability="async")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="needs durability"):
        Settings(replica_url="file:///far")
    assert Settings().durability == "local"
