"""What lies below a replica URL, beside what the engine does there: look, note, remove.

Keys are relative, with slashes. Methods block: call them from a thread. Removing what is not there
is fine. Errors are OSError, whatever the kind of store.
"""

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from sessions_actor.database_file import make_parent
from sessions_actor.errors import StorageError

from .paths import ReplicaUrl, local_path


class Objects(Protocol):
    """A store of small files."""

    def put(self, key: str, data: bytes) -> None:
        """Write a file, whole or not at all."""

    def get(self, key: str, size: int | None = None) -> bytes | None:
        """Read a file, or its first so many bytes; None when there is none."""

    def names(self, key: str) -> list[str]:
        """List what lies directly below a folder, sorted; folders end in a slash."""

    def remove(self, key: str) -> None:
        """Remove a file, or a folder (a key that ends in a slash) with all below it."""


def open_objects(url: ReplicaUrl) -> Objects:
    """Open the store below a URL, without asking it anything.

    Raises: StorageError for a kind that only the engine knows, or whose package is missing.
    """
    if url.scheme == "file":
        return FileObjects(Path(local_path(url)))
    if url.scheme == "s3":
        return S3Objects(url)
    raise StorageError(str(url), f"{url.scheme}:// can be copied to, but not listed")


class FileObjects:
    """A folder. It is made, but not what it lies in: that may be a share which is not mounted."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, data: bytes) -> None:
        path = self._root / key
        if not self._root.parent.is_dir():
            advice = "there is no such folder: mount the share that holds it, or make it if new"
            raise FileNotFoundError(errno.ENOENT, advice, str(self._root.parent))
        make_parent(str(path))
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with open(draft, "xb", opener=_private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def get(self, key: str, size: int | None = None) -> bytes | None:
        try:
            with open(self._root / key, "rb") as file:
                return file.read(-1 if size is None else size)
        except FileNotFoundError:
            return None

    def names(self, key: str) -> list[str]:
        try:
            with os.scandir(self._root / key) as found:
                return sorted(
                    entry.name + ("/" if entry.is_dir() else "")
                    for entry in found
                    if not entry.name.startswith(".")
                )
        except FileNotFoundError:
            return []

    def remove(self, key: str) -> None:
        path = self._root / key
        with contextlib.suppress(FileNotFoundError):
            if key.endswith("/"):
                shutil.rmtree(path)
            else:
                path.unlink()


class S3Objects:
    """A bucket of any S3-compatible store, reached with the credentials of the environment."""

    def __init__(self, url: ReplicaUrl) -> None:
        try:
            import boto3
            import botocore.config
            import botocore.exceptions
        except ImportError as error:
            reason = "boto3 is not installed; install the extra: sessions-actor[replication]"
            raise StorageError(str(url), reason) from error
        self._errors = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)
        self._bucket, self._prefix = url.host, url.path.strip("/")
        endpoint = url.option("endpoint")
        if endpoint is not None and "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        style = "path" if url.option("force-path-style") == "true" else "auto"
        self._s3: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=url.option("region") or os.environ.get("AWS_REGION") or "us-east-1",
            config=botocore.config.Config(
                s3={"addressing_style": style},
                connect_timeout=5,
                read_timeout=20,
                retries={"max_attempts": 3},
            ),
        )

    def put(self, key: str, data: bytes) -> None:
        with self._translated():
            self._s3.put_object(Bucket=self._bucket, Key=self._key(key), Body=data)

    def get(self, key: str, size: int | None = None) -> bytes | None:
        part = {} if size is None else {"Range": f"bytes=0-{size - 1}"}
        with self._translated():
            try:
                found = self._s3.get_object(Bucket=self._bucket, Key=self._key(key), **part)
            except self._s3.exceptions.NoSuchKey:
                return None
            data: bytes = found["Body"].read()
            return data

    def names(self, key: str) -> list[str]:
        prefix = self._key(key).rstrip("/") + "/"
        names: list[str] = []
        for page in self._pages(prefix, Delimiter="/"):
            names += [one["Prefix"][len(prefix) :] for one in page.get("CommonPrefixes", ())]
            names += [one["Key"][len(prefix) :] for one in page.get("Contents", ())]
        return sorted(name for name in names if name)

    def remove(self, key: str) -> None:
        with self._translated():
            if not key.endswith("/"):
                self._s3.delete_object(Bucket=self._bucket, Key=self._key(key))
                return
        for page in self._pages(self._key(key)):
            keys = [{"Key": one["Key"]} for one in page.get("Contents", ())]
            if keys:
                with self._translated():
                    answer = self._s3.delete_objects(
                        Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True}
                    )
                for one in answer.get("Errors", ()):  # the answer's status is 200 all the same
                    raise OSError(f"s3://{self._bucket}/{one.get('Key')}: {one.get('Message')}")

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _pages(self, prefix: str, **options: str) -> Iterator[dict[str, Any]]:
        pages = self._s3.get_paginator("list_objects_v2")
        with self._translated():
            yield from pages.paginate(Bucket=self._bucket, Prefix=prefix, **options)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise OSError(f"s3://{self._bucket}: {error}") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
