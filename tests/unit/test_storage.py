"""The storage as a whole: identity, tables, sizes, checks."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from sessions_actor.limits import QUOTA_BYTES_DEFAULT
from sessions_actor.storage import Storage

FIXTURE = Path(__file__).parents[1] / "conformance" / "fixtures" / "durable-object.sqlite"


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    opened = Storage(tmp_path / "a.sqlite")
    yield opened
    opened.close()


def test_meta_keeps_identity(storage: Storage) -> None:
    assert storage.meta.get("name") is None
    assert storage.meta.get_all() == {}
    storage.meta.put({"name": "a\x00b/🗝", "epoch": 3})
    storage.meta.put({"epoch": 4, "created_at": 1_700_000_000_000})
    assert storage.meta.get_all() == {
        "name": "a\x00b/🗝",
        "epoch": 4,
        "created_at": 1_700_000_000_000,
    }
    assert storage.meta.get("epoch") == 4


def test_data_tables_are_the_ordinary_ones(storage: Storage) -> None:
    storage.sql.exec("CREATE TABLE own (id INTEGER PRIMARY KEY AUTOINCREMENT)")
    storage.sql.exec("CREATE TABLE _cf_KV (key, value); CREATE TABLE _cfx (a)")
    storage.sql.exec("CREATE VIRTUAL TABLE words USING fts5(text)")
    storage.sql.exec("CREATE VIRTUAL TABLE places USING rtree(id, x, y)")
    storage.sql.exec("CREATE VIEW seen AS SELECT * FROM own")
    storage.sql.exec("CREATE TEMP TABLE passing (a)")
    storage.sql.exec("ANALYZE")
    storage.kv.put("a", 1)
    storage.meta.put({"epoch": 1})
    assert storage.data_tables() == ("_cfx", "own", "sessions_actor_kv", "sessions_actor_meta")


@pytest.mark.skipif(not FIXTURE.exists(), reason="the recorded files are not here")
def test_a_file_of_a_real_durable_object_opens_and_is_sound(tmp_path: Path) -> None:
    shutil.copy(FIXTURE, tmp_path / "a.sqlite")
    storage = Storage(tmp_path / "a.sqlite")
    tables = storage.data_tables()
    assert "cf_agents_session_messages" in tables
    assert not any(name.startswith("_cf") or "fts" in name for name in tables)
    assert storage.check() == []
    storage.kv.put("a", 1)
    storage.close()


def test_sizes(storage: Storage) -> None:
    assert storage.quota_bytes == QUOTA_BYTES_DEFAULT
    storage.sql.exec("CREATE TABLE big (data)")
    empty = storage.used_bytes
    storage.sql.exec("INSERT INTO big VALUES (zeroblob(1000000))")
    assert storage.used_bytes >= 1_000_000
    assert storage.database_size == storage.used_bytes
    size = storage.database_size
    storage.sql.exec("DELETE FROM big")
    assert storage.used_bytes == empty
    assert storage.database_size == size, "freed pages are used again, not given back"


def test_check_tells_broken_references(storage: Storage) -> None:
    storage.sql.exec("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    storage.sql.exec("CREATE TABLE child (parent REFERENCES parent (id))")
    assert storage.check() == []
    storage.connection.pragma("foreign_keys", 0)
    storage.sql.exec("INSERT INTO child VALUES (7)")
    assert storage.check() == ["row 1 of child points at no row of parent"]


def test_the_log_stays_bounded(storage: Storage) -> None:
    """Writing far more than the log may hold, with results of readers still in hand."""
    storage.sql.exec("CREATE TABLE notes (id INTEGER PRIMARY KEY, text)")
    results = []
    insert = "INSERT INTO notes (text) VALUES (?)"
    for _ in range(150):
        storage.perform(lambda: storage.write_many(insert, [("x" * 4000,)] * 40))
        results.append(storage.sql.exec("SELECT * FROM notes LIMIT 10"))
    log = Path(f"{storage.path}-wal")
    assert log.stat().st_size < 12 * 1024 * 1024
    storage.perform(lambda: storage.write("INSERT INTO notes (text) VALUES (zeroblob(40000000))"))
    storage.perform(lambda: storage.write("INSERT INTO notes (text) VALUES ('next')"))
    assert log.stat().st_size < 20 * 1024 * 1024


def test_fetch_returns_tuples(storage: Storage) -> None:
    assert storage.fetch("VALUES (1, 'a'), (2, NULL)") == [(1, "a"), (2, None)]
    assert storage.fetch_one("SELECT ?, ?", (1, 2)) == (1, 2)
    assert storage.fetch_one("SELECT 1 WHERE 0") is None
    with pytest.raises(apsw.SQLError):
        storage.fetch("SELECT nothing")
    with pytest.raises(apsw.SQLError):
        storage.fetch_one("SELECT nothing")


def test_write_many_runs_a_statement_per_row(storage: Storage) -> None:
    storage.sql.exec("CREATE TABLE a (b)")
    storage.perform(
        lambda: storage.write_many("INSERT INTO a VALUES (?)", ((n,) for n in range(5)))
    )
    assert storage.fetch("SELECT sum(b) FROM a") == [(10,)]


def test_two_storages_do_not_share_anything(tmp_path: Path) -> None:
    first, second = Storage(tmp_path / "1.sqlite"), Storage(tmp_path / "2.sqlite")
    first.kv.put("a", 1)
    assert second.kv.get("a") is None
    first.close()
    second.kv.put("a", 2)
    second.close()
