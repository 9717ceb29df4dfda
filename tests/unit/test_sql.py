"""`storage.sql.exec` for capabilities and hosts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from sessions_actor.errors import QuotaExceededError
from sessions_actor.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    opened = Storage(tmp_path / "a.sqlite")
    opened.sql.exec("CREATE TABLE pets (name TEXT PRIMARY KEY, legs INTEGER)")
    yield opened
    opened.close()


def test_rows_are_dicts_in_column_order(storage: Storage) -> None:
    storage.sql.exec("INSERT INTO pets VALUES (?, ?), (?, ?)", "cat", 4, "bird", 2)
    cursor = storage.sql.exec("SELECT name, legs, legs * 2 AS shoes FROM pets ORDER BY name")
    assert cursor.column_names == ("name", "legs", "shoes")
    assert list(cursor) == [
        {"name": "bird", "legs": 2, "shoes": 4},
        {"name": "cat", "legs": 4, "shoes": 8},
    ]
    assert cursor.to_list() == list(cursor), "it can be read again"
    assert cursor.raw() == [("bird", 2, 4), ("cat", 4, 8)]
    assert cursor.rows_written == 0


def test_columns_are_known_without_rows(storage: Storage) -> None:
    cursor = storage.sql.exec("SELECT name, legs FROM pets")
    assert cursor.column_names == ("name", "legs")
    assert cursor.to_list() == []


def test_columns_of_one_name_are_kept_apart_by_raw(storage: Storage) -> None:
    cursor = storage.sql.exec("SELECT 1 AS a, 2 AS a")
    assert cursor.to_list() == [{"a": 2}]
    assert cursor.raw() == [(1, 2)]


def test_one_wants_exactly_one_row(storage: Storage) -> None:
    assert storage.sql.exec("SELECT count(*) AS pets FROM pets").one() == {"pets": 0}
    with pytest.raises(ValueError, match="exactly one row, got 0"):
        storage.sql.exec("SELECT * FROM pets").one()
    with pytest.raises(ValueError, match="exactly one row, got 2"):
        storage.sql.exec("VALUES (1), (2)").one()


def test_rows_written_count_what_statements_and_triggers_change(storage: Storage) -> None:
    exec_ = storage.sql.exec
    assert exec_("INSERT INTO pets VALUES ('cat', 4), ('bird', 2)").rows_written == 2
    assert exec_("UPDATE pets SET legs = legs + 0").rows_written == 2
    assert exec_("UPDATE pets SET legs = 1 WHERE name = 'none'").rows_written == 0
    assert exec_("DELETE FROM pets; INSERT INTO pets VALUES ('dog', 4)").rows_written == 3
    exec_("CREATE TABLE log (name)")
    exec_("CREATE TRIGGER logged AFTER INSERT ON pets BEGIN INSERT INTO log VALUES (new.name); END")
    assert exec_("INSERT INTO pets VALUES ('cow', 4)").rows_written == 2


def test_several_statements_share_their_parameters_and_return_the_last_result(
    storage: Storage,
) -> None:
    cursor = storage.sql.exec(
        """
        INSERT INTO pets VALUES (?, ?);  -- the first
        /* another */ SELECT 'dropped';
        INSERT INTO pets VALUES (?, 6) RETURNING name, legs
        """,
        "cat",
        4,
        "ant",
    )
    assert cursor.to_list() == [{"name": "ant", "legs": 6}]
    assert cursor.column_names == ("name", "legs")
    assert cursor.rows_written == 2
    assert storage.sql.exec("SELECT 1; DELETE FROM pets").to_list() == []


def test_named_parameters(storage: Storage) -> None:
    storage.sql.exec("INSERT INTO pets VALUES (:name, $legs)", {"name": "cat", "legs": 4})
    assert storage.sql.exec("SELECT * FROM pets").one() == {"name": "cat", "legs": 4}


def test_nothing_to_run_is_nothing(storage: Storage) -> None:
    for query in ("", " ; ", "-- only a comment", "/* open"):
        cursor = storage.sql.exec(query)
        assert (cursor.to_list(), cursor.column_names, cursor.rows_written) == ([], (), 0)


def test_a_call_is_all_or_nothing(storage: Storage) -> None:
    with pytest.raises(apsw.ConstraintError):
        storage.sql.exec("INSERT INTO pets VALUES ('cat', 4); INSERT INTO pets VALUES ('cat', 4)")
    with pytest.raises(apsw.SQLError, match="no such table"):
        storage.sql.exec("INSERT INTO pets VALUES ('cat', 4); DELETE FROM elsewhere")
    assert storage.sql.exec("SELECT * FROM pets").to_list() == []


def test_errors_of_the_statement_are_sqlite_s(storage: Storage) -> None:
    with pytest.raises(apsw.SQLError, match="syntax error"):
        storage.sql.exec("SELEKT 1")
    with pytest.raises(apsw.BindingsError):
        storage.sql.exec("SELECT ?, ?", 1)
    with pytest.raises(apsw.BindingsError):
        storage.sql.exec("SELECT ?", 1, 2)
    with pytest.raises(TypeError):
        storage.sql.exec("SELECT ?", object())
    with pytest.raises(OverflowError):
        storage.sql.exec("SELECT ?", 2**64)


@pytest.mark.parametrize(
    "query",
    [
        "BEGIN",
        "begin immediate",
        " -- c\n /* d */ ; COMMIT",
        "SELECT 1; ROLLBACK",
        "INSERT INTO pets VALUES ('cat', 4); END",
        "SAVEPOINT a",
        "RELEASE sessions_actor_op",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "VACUUM",
        "VACUUM INTO '/tmp/copy'",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA/**/synchronous=OFF",
        "PRAGMA main.max_page_count = 1",
        'PRAGMA "journal_mode"',
        "PRAGMA writable_schema = ON",
        "PRAGMA wal_checkpoint",
        "PRAGMA locking_mode = EXCLUSIVE",
    ],
)
def test_what_reaches_past_the_conversation_is_refused(storage: Storage, query: str) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not available here"):
            storage.sql.exec(query)
    assert storage.sql.exec("SELECT * FROM pets").to_list() == []
    assert storage.connection.pragma("journal_mode") == "wal"
    storage.sql.exec("INSERT INTO pets VALUES ('cat', 4)")
    assert storage.broken is None


def test_settings_that_only_tell_are_available(storage: Storage) -> None:
    columns = storage.sql.exec("PRAGMA table_info(pets)").to_list()
    assert [column["name"] for column in columns] == ["name", "legs"]
    storage.sql.exec("PRAGMA main.user_version = 7")
    assert storage.sql.exec("PRAGMA user_version").one() == {"user_version": 7}
    assert storage.sql.exec("EXPLAIN QUERY PLAN SELECT * FROM pets").to_list()


def test_the_schema_cannot_be_broken(storage: Storage) -> None:
    storage.sql.exec("CREATE VIRTUAL TABLE words USING fts5(text)")
    for query in (
        "DELETE FROM sqlite_schema",
        "DELETE FROM words_data",
        "SELECT load_extension('a')",
    ):
        with pytest.raises(apsw.Error):
            storage.sql.exec(query)


async def test_a_write_is_durable_with_its_group(storage: Storage) -> None:
    storage.flush()
    storage.sql.exec("INSERT INTO pets VALUES ('cat', 4)")
    assert storage.pending
    await storage.durable()
    assert not storage.pending
    storage.sql.exec("SELECT * FROM pets")
    assert not storage.pending


def test_within_an_op_statements_are_part_of_it(storage: Storage) -> None:
    def op() -> None:
        storage.sql.exec("INSERT INTO pets VALUES ('cat', 4)")
        with pytest.raises(apsw.ConstraintError):
            storage.sql.exec("INSERT INTO pets VALUES ('cat', 4)")
        storage.sql.exec("INSERT INTO pets VALUES ('dog', 4)")

    storage.transaction(op)
    assert storage.sql.exec("SELECT count(*) AS n FROM pets").one() == {"n": 2}


def test_many_distinct_statements_are_fine(storage: Storage) -> None:
    async def main() -> None:
        for number in range(1200):
            storage.sql.exec(f"INSERT INTO pets VALUES ('p{number}', 0)")
        await storage.durable()

    asyncio.run(main())
    assert storage.sql.exec("SELECT count(*) AS n FROM pets").one() == {"n": 1200}


def test_a_result_is_complete_whatever_follows(storage: Storage) -> None:
    """No cursor keeps reading, so nothing holds the log open."""
    storage.sql.exec(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)"
        " INSERT INTO pets SELECT 'p' || i, i FROM n"
    )
    cursor = storage.sql.exec("SELECT * FROM pets")
    storage.sql.exec("DROP TABLE pets")
    assert len(cursor.to_list()) == 5000


def test_the_quota_holds_for_a_single_statement(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "small.sqlite", quota_bytes=100_000)
    storage.sql.exec("CREATE TABLE a (b)")
    with pytest.raises(QuotaExceededError):
        storage.sql.exec("INSERT INTO a VALUES (zeroblob(200000))")
    assert storage.sql.exec("SELECT * FROM a").to_list() == []
    storage.close()
