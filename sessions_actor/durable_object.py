"""What one conversation is: an identity by name, its storage, and the class people derive from."""

from dataclasses import dataclass, field
from typing import Protocol

from .storage import Storage


@dataclass(frozen=True, slots=True)
class ObjectState:
    """What an activation hands to its object.

    `name` is the identity, `storage` the conversation's own file, and `epoch` counts the
    activations: whoever presents a lower one than the file carries is no longer the owner.
    """

    name: str
    storage: Storage = field(repr=False)
    epoch: int = 0


class HostLifecycle(Protocol):
    """What an activation needs of an installed lifecycle."""

    async def start(self) -> None: ...
    async def dispose(self) -> None: ...


class DurableObject:
    """A conversation in memory; derive from it to add capabilities and methods of one's own.

    Its `__init__` takes the state, builds capabilities and does no I/O; what has to be read or
    waited for belongs into `on_start`, which runs after every capability has started.
    """

    # Set by `Lifecycle.install`, once.
    installed_lifecycle: HostLifecycle | None = None

    def __init__(self, state: ObjectState) -> None:
        self._state = state

    @property
    def state(self) -> ObjectState:
        """Everything this activation was given."""
        return self._state

    @property
    def name(self) -> str:
        """The conversation's name."""
        return self._state.name

    @property
    def storage(self) -> Storage:
        """The conversation's own file."""
        return self._state.storage

    async def on_start(self) -> None:
        """Do what must be done before the first call; nothing unless overridden."""
