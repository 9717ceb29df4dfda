"""Where replicas go in tests: the engine, and a local S3 server.

The server runs in a process of its own: whoever tests does not take its turns.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from router.replication.engine import find_program
from sessions_actor.errors import StorageError

BUCKET: Final = "replicas"
KEY_VARIABLES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""What the environment of everything that reads or writes the store holds; any value will do."""

# It ends with the pipe on its standard input, however its owner ends.
_SERVE: Final = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def skip_without_engine() -> str:
    """Return the replication engine's program, or skip where its package has no build."""
    try:
        return find_program()
    except StorageError as error:
        pytest.skip(f"the replication engine is not installed: {error.reason}")


@contextmanager
def s3_server() -> Iterator[int]:
    """Serve an empty bucket while this is open; yields the port. Skips where moto is missing."""
    pytest.importorskip("moto.server")
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline())
        _make_bucket(port)
        yield port
    finally:
        server.stdin.close()
        server.wait(30)
        server.stdout.close()


def s3_url(port: int, path: str) -> str:
    """Return the URL of a place in the bucket, as the server of a port serves it."""
    options = f"endpoint=http://127.0.0.1:{port}&force-path-style=true&region=us-east-1"
    return f"s3://{BUCKET}/{path}?{options}"


def _make_bucket(port: int) -> None:
    import boto3

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    s3: Any = boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", **keys
    )
    s3.create_bucket(Bucket=BUCKET)
