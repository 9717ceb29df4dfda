"""The class a conversation hosts unless a deployment names its own."""

from .durable_object import DurableObject, ObjectState
from .lifecycle import Lifecycle
from .sessions import Sessions


class Conversation(DurableObject):
    """A Durable Object with the Sessions capability and nothing else."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.sessions = Sessions()
        self.lifecycle = Lifecycle.install(self).use(self.sessions)
        self.session = self.sessions.session()
