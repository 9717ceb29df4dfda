"""Finding the cluster to work on: the one that runs, or a private one of our own.

Order, when no address is given: the cluster this process is in already; RAY_ADDRESS; the one whose
router serves our storage root (it left word there); the one this machine's `ray start` made; else
a local one is started and belongs to who started it.
"""

import contextlib
import json
import logging
import os
import socket
from pathlib import Path
from typing import Any, Final

import ray
import ray.exceptions

from .service import DEPLOYMENT_FILE
from .settings import Settings
from .shards import ROUTER_NAME

CONNECT_TIMEOUT_S: Final = 1.0

# For a cluster that we start: a script's environment is the workers' as it is. Each process of
# Ray's takes threads by the machine's cores; an actor here serves one conversation and needs none.
_LOCAL_ENVIRONMENT: Final = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_num_grpc_internal_threads": "1",
    "RAY_core_worker_num_server_call_thread": "1",
}


def join_or_start(address: str | None, namespace: str, settings: Settings) -> bool:
    """Bring this process into a cluster; says whether that one was started here.

    Args: `address` is what `ray.init` takes; "local" starts a private cluster in any case.
    Raises: ConnectionError when a given address does not answer, or refuses our token; when Ray
        does not come up here.
    """
    if ray.is_initialized():
        if address == "local":
            raise RuntimeError("this process is in a cluster already: ray.shutdown() first")
        return False
    if address is None:
        address = os.environ.get("RAY_ADDRESS") or None
    if address is None and _join_deployment(namespace, settings):
        return False
    if address is None:
        address = _started_by_ray_start()
    options: dict[str, Any] = {
        "namespace": namespace,
        "log_to_driver": settings.log_to_driver,
        "logging_level": logging.ERROR,
    }
    if address not in (None, "local"):
        given: str | None = address
        if address == "auto":
            given = os.environ.get("RAY_ADDRESS") or _started_by_ray_start()
        if given is not None and ":" in given and "://" not in given:
            if not _answers(given):
                raise ConnectionError(f"nothing answers at {given}")
            _require_admission(given)
        ray.init(address=address, **options)
        return False
    for variable, value in _LOCAL_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    try:
        ray.init(address="local", include_dashboard=False, **options)
    except Exception as error:
        if type(error) is not Exception:  # Ray's own, of a node that was not ready within 30 s
            raise
        raise ConnectionError(
            f"Ray did not start on this machine: {error} It may be short of CPU or memory now"
        ) from error
    _keep_token_private()
    return True


def _keep_token_private() -> None:
    """Let this user alone read the token that Ray wrote for them: it asks the umask."""
    with contextlib.suppress(OSError, RuntimeError):
        file = Path.home() / ".ray" / "auth_token"
        if file.stat().st_uid == os.getuid() and file.stat().st_mode & 0o077:
            file.chmod(0o600)


def _join_deployment(namespace: str, settings: Settings) -> bool:
    """Join the cluster whose router serves our storage root, if one does."""
    note = _read_note(settings.storage_root / DEPLOYMENT_FILE)
    if note is None or note.get("namespace") != namespace or not _answers(note["address"]):
        return False
    try:
        _use_token()
        ray.init(
            address=note["address"],
            namespace=namespace,
            log_to_driver=settings.log_to_driver,
            logging_level=logging.ERROR,
        )
        ray.get_actor(ROUTER_NAME, namespace)
    except Exception:  # the note is old: something else answers there now
        with contextlib.suppress(Exception):
            ray.shutdown()
        return False
    return True


def _require_admission(address: str) -> None:
    """Make sure that a cluster takes our token.

    `ray.init` would knock for 20 seconds and then say only that it failed. A token of this user
    is presented where nothing says which mode to use.
    Raises: ConnectionError saying how to pass the token.
    """
    refusal: Any = getattr(ray.exceptions, "AuthenticationError", ())  # an earlier Ray has none
    try:
        _knock(address)
    except ray.exceptions.RpcError:
        return  # it is not up: joining it says so
    except refusal:
        if "RAY_AUTH_MODE" not in os.environ:
            _use_token()
            with contextlib.suppress(refusal):
                _knock(address)
                return
        raise ConnectionError(
            f"the cluster at {address} refuses this token: set RAY_AUTH_MODE=token and"
            " RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's own"
        ) from None


def _knock(address: str) -> None:
    """Ask a cluster for its id, as everything that joins it does first."""
    import ray._raylet as raylet  # its stubs do not name what it holds

    getattr(raylet, "GcsClient")(address=address)  # noqa: B009


def _use_token() -> None:
    """Present this user's token to a cluster that was found here, as Ray does for "auto".

    Since 2.60, a cluster that `ray.init` starts asks for it; to an address that is given, Ray
    presents it only with RAY_AUTH_MODE=token.
    """
    with contextlib.suppress(ImportError):  # an earlier Ray has no tokens
        from ray._private.authentication import authentication_token_setup as setup

        logging.getLogger("ray").setLevel(logging.ERROR)  # it warns that it is secure
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _started_by_ray_start() -> str | None:
    """Return the address of the cluster that `ray start` made here, if it is this user's."""
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    try:
        if file.stat().st_uid != os.getuid():
            return None
        address = file.read_text().strip()
    except OSError:
        return None
    return address if _answers(address) else None


def _read_note(file: Path) -> dict[str, Any] | None:
    try:
        note = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) and isinstance(note.get("address"), str) else None


def _answers(address: str) -> bool:
    """Say whether something listens at `host:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return False
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False
