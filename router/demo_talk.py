"""The conversation that the demo brings along: a birthday under the stars.

A user and an assistant, one tool call with its result, one picture (a balcony at dusk, painted
here), one answer that was asked for twice. Also the summariser that the demo installs: it picks
sentences, so it needs no model and no network.
"""

import base64
import re
import struct
import zlib
from collections import Counter
from typing import Any

from sessions_actor.compaction import create_compact_function
from sessions_actor.durable_object import DurableObject, ObjectState
from sessions_actor.lifecycle import Lifecycle
from sessions_actor.messages import SessionMessage
from sessions_actor.sessions import Sessions

KEEP_RECENT_TOKENS = 220

_WIDTH, _HEIGHT = 240, 160


def _picture() -> bytes:
    """Paint a balcony's view at dusk as a PNG: a sky, some stars, a church tower, roofs."""
    rows = []
    for y in range(_HEIGHT):
        row = bytearray(b"\0")
        for x in range(_WIDTH):
            house = x // 22
            roofs = y > 118 + house * 5 % 17 + abs(x % 22 - 11) // (1 + house % 3)
            tower = (148 <= x < 162 and y > 58) or (abs(x - 155) < (y - 38) / 3 and 38 < y <= 58)
            star = y < 100 and zlib.crc32(b"%d,%d" % (x, y)) % 500 == 0
            saturn = abs(x - 190) + abs(y - 62) <= 1
            if saturn:
                row += bytes((255, 226, 160))
            elif roofs or tower:
                row += bytes((24 + y % 3, 22, 34 + x % 5))
            elif star:
                row += bytes((240, 240, 255))
            else:
                row += bytes((20 + y // 2, 24 + y // 4, 70 + y // 3))
        rows.append(bytes(row))
    header = struct.pack(">IIBBBBB", _WIDTH, _HEIGHT, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + checksum


PICTURE = _picture()


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _said(message_id: str, role: str, *parts: dict[str, Any] | str) -> SessionMessage:
    held = [_text(part) if isinstance(part, str) else part for part in parts]
    return {"id": message_id, "role": role, "parts": held}


TALK: list[SessionMessage] = [
    _said(
        "u1",
        "user",
        "My daughter Ada turns nine on Saturday and wants to see the rings of Saturn. We live in"
        " the middle of Ljubljana and own one pair of 10x50 binoculars. Is that hopeless?",
    ),
    _said(
        "a1",
        "assistant",
        "Not hopeless at all! Binoculars will show Saturn as a tiny golden oval, and that is"
        " already a good riddle for a nine-year-old: why is it not round? To see the rings"
        " themselves you need about 25 times magnification. Even a small travel telescope does it,"
        " and Saturn is bright enough for a city sky.",
    ),
    _said(
        "u2",
        "user",
        "My neighbour lends me his small telescope, a 70 mm refractor. How will the sky be on"
        " Saturday evening?",
    ),
    _said(
        "a2",
        "assistant",
        {
            "type": "tool-getSkyForecast",
            "toolCallId": "call_sky_1",
            "state": "output-available",
            "input": {"place": "Ljubljana", "date": "Saturday", "hours": ["21:00", "23:00"]},
            "output": {
                "cloud_cover_percent": 15,
                "moon": {"phase": "waxing crescent", "sets": "21:35"},
                "saturn": {"above_roofs_from": "21:50", "direction": "south-east", "altitude": 24},
                "seeing": "good",
            },
        },
        "You are lucky: almost no clouds, and the moon sets at 21:35, so it will be dark. Saturn"
        " climbs over the roofs in the south-east at 21:50. Between ten and half past ten is your"
        " best time.",
    ),
    _said(
        "u3",
        "user",
        "This is the view from our balcony. The church tower stands to the south.",
        {
            "type": "file",
            "mediaType": "image/png",
            "filename": "balcony.png",
            "url": "data:image/png;base64," + base64.b64encode(PICTURE).decode(),
        },
    ),
    _said(
        "a3",
        "assistant",
        "What a view! The tower hides a narrow strip of the southern sky, but Saturn comes up to"
        " the left of it and stays clear of the tower until midnight. Put the telescope at the"
        " right end of the balcony, and switch off the lamp behind you ten minutes before.",
    ),
    _said("u4", "user", "Explain to me why Saturn has rings, so that I can tell Ada."),
    _said(
        "a4",
        "assistant",
        "The rings consist of countless particles, mostly water ice, from micrometres to metres in"
        " size, orbiting within the Roche limit, where tidal forces keep them from forming a"
        " moon.",
    ),
]

# The same question, answered again: a branch.
SECOND_ANSWER = _said(
    "a4b",
    "assistant",
    "Tell her this: Saturn wears a skirt of snowballs. Some are as small as sugar, some as big as"
    " your house, and they all run around the planet without bumping into each other much. Perhaps"
    " it was once a moon that came too close and was pulled to pieces.",
)

REST: list[SessionMessage] = [
    _said("u5", "user", "Snowballs! That is the one. And if clouds come after all?"),
    _said(
        "a5",
        "assistant",
        "Then the party moves inside: the observatory streams Saturn live on Saturday from 22:00."
        " Keep the telescope ready anyway, one gap of five minutes is enough. Plan B is hot"
        " chocolate, and plan B is never a failure.",
    ),
    _said("u6", "user", "Good. Remind me of the times, in one line?"),
    _said(
        "a6",
        "assistant",
        "21:35 the moon sets, 21:40 lamp off, 21:50 Saturn clears the roofs, 22:00 to 22:30 look,"
        " 22:31 cake.",
    ),
]


def summarize(prompt: str) -> str:
    """Summarise by picking sentences that hold the words the conversation repeats most.

    Extractive and local: it stands in for a language model.
    """
    said = re.split(r"CONVERSATION TO SUMMARIZE:|NEW TURNS TO INCORPORATE:", prompt)[-1]
    said = said.split("\n## Topic")[0]
    said = re.sub(r"\[Tool:.*|Input:.*|Output:.*|\[\w+\]|---|Use this structure:", " ", said)
    sentences = [one.strip() for one in re.split(r"(?<=[.!?])\s+", said) if len(one.strip()) > 30]
    words = Counter(word for word in re.findall(r"\w+", said.lower()) if len(word) > 4)

    def weight(sentence: str) -> float:
        found = re.findall(r"\w+", sentence.lower())
        return sum(words[word] for word in set(found)) / (4 + len(found))

    best = sorted(sentences, key=weight, reverse=True)[:3]
    return "Earlier: " + " ".join(one for one in sentences if one in best)


class DemoConversation(DurableObject):
    """A conversation that can summarise itself: where a deployment installs its own model."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.sessions = Sessions()
        self.lifecycle = Lifecycle.install(self).use(self.sessions)
        self.session = self.sessions.session()
        self.session.on_compaction(
            create_compact_function(summarize=summarize, keep_recent_tokens=KEEP_RECENT_TOKENS)
        )
