"""Where replicas lie."""

from urllib.parse import quote, unquote

import pytest

from router.replication.paths import (
    ReplicaUrl,
    deployment_url,
    directory_url,
    folder_of,
    line_key,
    line_url,
    number,
    parse_number,
    record_key,
)


def test_a_line_is_named_by_conversation_and_generation() -> None:
    base = deployment_url("s3://bucket/deep/?endpoint=http://h:9&force-path-style=true", "a/b")
    url = str(line_url(base, "alice", 18))
    assert url.startswith("s3://bucket/deep/a~2Fb/conversations/")
    assert url.endswith("/0000000000000012?endpoint=http://h:9&force-path-style=true")
    assert line_key("alice", 18) in url
    assert record_key("alice", 18) == line_key("alice", 18) + ".json"


def test_the_folder_of_a_namespace_is_written_the_same_way_everywhere() -> None:
    namespaces = ["sessions", "a.b-c_1", "a b", "a~20b", "a%20b", "a+b", "é", "a/b", ".", "..", ""]
    folders = [folder_of(namespace) for namespace in namespaces]
    assert folders[:3] == ["sessions", "a.b-c_1", "a~20b"]
    assert len(set(folders)) == len(folders)
    for folder in folders:
        assert quote(folder, safe="") == folder == unquote(folder)
        assert folder not in (".", "..")


@pytest.mark.parametrize(
    "url", ["file:///mnt/a%20b", "s3://bucket/a%2Fb", "file:///mnt/a b", "s3://b/é"]
)
def test_a_path_that_stores_would_write_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="mean the same to every store"):
        ReplicaUrl.parse(url)


@pytest.mark.parametrize("scheme", ["file://", "s3://bucket", "gs://bucket"])
@pytest.mark.parametrize("path", ["/a/../b", "/a/./b", "/a//b", "//a", "/..", "/.", "/a/.."])
def test_a_path_that_stores_would_read_in_two_ways_is_refused(scheme: str, path: str) -> None:
    with pytest.raises(ValueError, match="write it without"):
        ReplicaUrl.parse(scheme + path)


def test_no_two_conversations_or_generations_share_a_line() -> None:
    base = deployment_url("file:///far", "sessions")
    urls = {
        str(line_url(base, name, generation))
        for name in ("a", "b", "a/b", "..", "A", "é")
        for generation in (0, 1, 16, 2**40)
    }
    assert len(urls) == 24
    assert not any(".." in url for url in urls)


def test_numbers_sort_as_text_and_come_back() -> None:
    values = [0, 1, 9, 10, 255, 256, 2**40]
    assert sorted(map(number, values)) == [number(value) for value in values]
    assert [parse_number(number(value)) for value in values] == values
    assert parse_number("x" * 16) is parse_number("12") is None
    assert parse_number("f" * 16) is parse_number("-" + "1" * 15) is None


def test_options_are_read_in_both_spellings() -> None:
    for query in ("force-path-style=true", "forcePathStyle=true"):
        assert ReplicaUrl.parse(f"s3://b/p?{query}").option("force-path-style") == "true"
    assert ReplicaUrl.parse("s3://b/p").option("endpoint") is None


@pytest.mark.parametrize("url", ["file:///a/b", "s3://b/p?region=x", "gs://b/p", "abs://b/p"])
def test_a_url_reads_as_it_was_written(url: str) -> None:
    assert str(ReplicaUrl.parse(url)) == url


def test_the_directory_has_lines_of_its_own() -> None:
    base = deployment_url("file:///far", "sessions")
    assert str(directory_url(base, 3)) == "file:///far/sessions/directory/0000000000000003"
    assert ReplicaUrl.parse("gs://b/p").listed is False
