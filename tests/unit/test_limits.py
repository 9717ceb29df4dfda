"""The bounds are those of the specification."""

from sessions_actor import limits


def test_values() -> None:
    assert limits.ROW_BYTES_MAX == limits.ATTACHMENT_CHUNK_BYTES == 1_572_864
    assert limits.WINDOW_ROWS_MAX == 50
    assert limits.WINDOW_BYTES_MAX == 4_194_304
    assert limits.WALK_DEPTH_MAX == 8
    assert limits.NAME_BYTES_MAX == 1024
    assert limits.QUOTA_BYTES_DEFAULT == 10_000_000_000
    assert limits.SQLITE_VERSION_MIN == (3, 51, 3)
