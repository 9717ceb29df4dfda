"""Speak to a served reference: one JSON call per request."""

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

from tests.conformance.scenario import Answer

CALL_TIMEOUT_S = 300


class ReferenceClient:
    """One connection to a served reference, kept open between calls."""

    def __init__(self, base: str) -> None:
        parts = urlsplit(base)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(
            parts.hostname, parts.port, timeout=CALL_TIMEOUT_S
        )

    def call(self, name: str, op: str, args: list[Any], session: str) -> Answer:
        """Run one operation on the object of that name."""
        body = json.dumps({"op": op, "args": args, "session": session})
        self._connection.request("POST", "/" + quote(name, safe=""), body)
        response = self._connection.getresponse()
        data = response.read()
        if response.status != 200:
            return {"error": f"HTTP {response.status}"}
        answer: Answer = json.loads(data)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class ReferenceConversation:
    """One fresh object of the reference, as a scenario adapter."""

    def __init__(self, client: ReferenceClient, name: str) -> None:
        self._client = client
        self._name = name

    async def call(self, op: str, args: list[Any], session: str) -> Answer:
        """Run one operation."""
        return self._client.call(self._name, op, args, session)
