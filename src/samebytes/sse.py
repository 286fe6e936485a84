"""Server-sent events, split as their specification says. Pure: the standard library alone.

https://html.spec.whatwg.org/multipage/server-sent-events.html, sections 9.2.5 and 9.2.6. Lines end with CR, LF or
CRLF and with nothing else: ``str.splitlines`` would also split at U+2028, U+2029 and U+0085, which JSON leaves bare
inside its strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event.

    Attributes
    ----------
    t : float
        Arrival of the piece that completed it (with the blank line), in the clock of the pieces.
    data : str
        Its ``data`` lines joined by LF.
    type : str
        Its ``event`` field, else ``"message"``.
    last_id : str
        The last ``id`` field of the stream up to here.
    """

    t: float
    data: str
    type: str = "message"
    last_id: str = ""


class Decoder:
    """Incremental decoder of one event stream.

    Lines are split on bytes and decoded whole, so that a character cut in two by a read survives. What a stream
    leaves without its blank line at the end is never dispatched, as the specification wants it.
    """

    def __init__(self) -> None:
        self._line = b""
        self._at_start = True
        self._after_cr = False
        self._data: list[str] = []
        self._type = ""
        self._last_id = ""

    def feed(self, t: float, piece: bytes) -> list[Event]:
        """Take the next piece and return the events that it completed.

        Parameters
        ----------
        t : float
            When the piece arrived.
        piece : bytes
            Any number of bytes, cut anywhere.
        """
        if not piece:
            return []
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]  # the second half of a CRLF that ended its line already
        self._after_cr = piece.endswith(b"\r")
        *lines, self._line = _LINE_END.split(self._line + piece)
        events: list[Event] = []
        for line in lines:
            if self._at_start:
                line = line.removeprefix(BOM)
                self._at_start = False
            if line:
                self._field(line)
                continue
            if self._data:
                events.append(Event(t, "\n".join(self._data), self._type or "message", self._last_id))
            self._data = []
            self._type = ""
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self._last_id = value
        # a comment has an empty name; "retry" and unknown fields do not concern a reader that never reconnects


def decode(pieces: Iterable[tuple[float, bytes]]) -> Iterator[Event]:
    """Yield the events of a whole stream given as (arrival, bytes) pieces."""
    decoder = Decoder()
    for t, piece in pieces:
        yield from decoder.feed(t, piece)
