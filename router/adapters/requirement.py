"""What an adapter says when the package it adapts to is not installed."""

from importlib.util import find_spec


def require(module: str, *, package: str, extra: str) -> None:
    """Check that an optional package is there, before anything of it is imported.

    Raises: ImportError that names the extra to install.
    """
    try:
        found = find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        found = False
    if not found:
        raise ImportError(
            f"this adapter needs {package}: pip install 'sessions-actor[{extra}]'", name=module
        )
