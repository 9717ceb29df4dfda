"""Where replicas lie, below a deployment's replica URL. Pure.

```
<url>/<namespace>/conversations/<ab>/<digest of the name>/<generation>/   one line: a file's replica
<url>/<namespace>/conversations/<ab>/<digest of the name>/<generation>.json   whose it is
<url>/<namespace>/directory/<number>/                                      the router's directory
```

A *line* is the replica of one file of a conversation. It is named by the file's generation, the
epoch at which that file was made: at its creation, by a migration, by a restore. Who owns a later
file writes another line, so a stale owner, or a node that was cut off, cannot reach it. An
activation that finds its own file as it was left goes on in the same line.
"""

from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

from sessions_actor.names import file_stem

CONVERSATIONS: Final = "conversations"
DIRECTORY: Final = "directory"
NUMBER_DIGITS: Final = 16
# SQLite counts no further, with room to count on from it.
NUMBER_MAX: Final = 1 << 62
RECORD_SUFFIX: Final = ".json"

# What the engine takes; for the first two this package also lists, reads and removes.
SCHEMES: Final = ("file", "s3", "gs", "abs", "sftp", "oss", "webdav", "webdavs", "nats")
SCHEMES_LISTED: Final = ("file", "s3")

# What stands for itself in the path of a URL, and in the folder of a namespace. The engine quotes
# some others where it makes a folder, and does not where it makes the key of an object.
PATH_MARKS: Final = "-._~+=@,:/"
PATH_KEPT: Final = frozenset(ascii_letters + digits + PATH_MARKS)
NAMESPACE_KEPT: Final = frozenset(ascii_letters + digits + "-._")
assert NAMESPACE_KEPT | {"~"} < PATH_KEPT

# Parts of a URL that say how to reach it and must not be told to everyone who asks.
SECRET_OPTIONS: Final = ("access-key-id", "secret-access-key", "accessKeyId", "secretAccessKey")


@dataclass(frozen=True, slots=True)
class ReplicaUrl:
    """A replica URL, taken apart: `scheme://host/path?query`."""

    scheme: str
    host: str
    path: str
    query: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Take a URL apart.

        Raises: ValueError that says what is wrong with it.
        """
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise ValueError(f"replica_url begins with one of {known}; not {url!r}")
        if parts.username or parts.password or parts.fragment:
            raise ValueError("replica_url holds no user and no fragment; credentials come from"
                             " the environment of the nodes")  # fmt: skip
        odd = "".join(sorted(set(parts.path) - PATH_KEPT))
        if odd:
            raise ValueError(f"the path of a replica_url holds {odd!r}: letters, digits and"
                             f" {PATH_MARKS} mean the same to every store")  # fmt: skip
        folders = parts.path[1:].removesuffix("/")
        if folders and not {"", ".", ".."}.isdisjoint(folders.split("/")):
            raise ValueError("the path of a replica_url holds '//', '.' or '..', which stores do"
                             " not read alike: write it without")  # fmt: skip
        if any(option in parse_qs(parts.query) for option in SECRET_OPTIONS):
            raise ValueError("replica_url holds no keys; they come from the environment of the"
                             " nodes (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)")  # fmt: skip
        if parts.scheme == "file":
            if parts.netloc or not parts.path.startswith("/") or parts.path.strip("/") == "":
                raise ValueError(f"a file:// replica_url has an absolute path, not {url!r}")
            if parts.query:
                raise ValueError("a file:// replica_url takes no options")
        elif not parts.netloc:
            raise ValueError(f"replica_url names no bucket or host: {url!r}")
        return cls(parts.scheme, parts.netloc, parts.path.rstrip("/"), parts.query)

    def __str__(self) -> str:
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.host}{self.path}{query}"

    def below(self, *names: str) -> "ReplicaUrl":
        """Return the URL of something below this one."""
        return ReplicaUrl(self.scheme, self.host, "/".join([self.path, *names]), self.query)

    @property
    def listed(self) -> bool:
        """Whether this package can list, read and remove what lies there."""
        return self.scheme in SCHEMES_LISTED

    def option(self, name: str) -> str | None:
        """Return an option of the query, in either spelling, or None."""
        options = parse_qs(self.query)
        camel = "".join(p if i == 0 else p.title() for i, p in enumerate(name.split("-")))
        found = options.get(name) or options.get(camel)
        return found[0] if found else None


def deployment_url(url: str, namespace: str) -> ReplicaUrl:
    """Return where a deployment's replicas lie; namespaces keep deployments apart."""
    return ReplicaUrl.parse(url).below(folder_of(namespace))


def folder_of(namespace: str) -> str:
    """Return a namespace as the name of a folder that no URL and no store writes another way.

    Letters, digits and `-`, `.`, `_` stand for themselves, the bytes of all else are `~` and hex.
    """
    kept = NAMESPACE_KEPT - {"."} if namespace.strip(".") == "" else NAMESPACE_KEPT
    return "".join(
        one if one in kept else "".join(f"~{byte:02X}" for byte in one.encode())
        for one in namespace
    )


def number(value: int) -> str:
    """Return a generation as a path: names sort as numbers do."""
    assert 0 <= value <= NUMBER_MAX
    return f"{value:0{NUMBER_DIGITS}x}"


def parse_number(text: str) -> int | None:
    """Return the generation that a path names, or None."""
    try:
        value = int(text, 16) if len(text) == NUMBER_DIGITS else -1
    except ValueError:
        return None
    return value if 0 <= value <= NUMBER_MAX else None


def conversation_key(name: str) -> str:
    """Return the folder of a conversation's lines, relative to the deployment."""
    return f"{CONVERSATIONS}/{file_stem(name)}"


def line_key(name: str, generation: int) -> str:
    """Return the folder of one line, relative to the deployment."""
    return f"{conversation_key(name)}/{number(generation)}"


def record_key(name: str, generation: int) -> str:
    """Return where it is written whose line this is, relative to the deployment."""
    return line_key(name, generation) + RECORD_SUFFIX


def line_url(base: ReplicaUrl, name: str, generation: int) -> ReplicaUrl:
    """Return the URL of one line."""
    return base.below(*line_key(name, generation).split("/"))


def directory_url(base: ReplicaUrl, line: int) -> ReplicaUrl:
    """Return the URL of one line of the router's directory."""
    return base.below(DIRECTORY, number(line))


def local_path(url: ReplicaUrl) -> str:
    """Return the folder that a file:// URL names."""
    assert url.scheme == "file"
    return url.path
