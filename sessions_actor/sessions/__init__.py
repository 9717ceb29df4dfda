"""Sessions: durable conversation history, one capability of a Durable Object.

Source: specification, "Sessions".
"""

from .capability import Sessions
from .session import Session

__all__ = ["Session", "Sessions"]
