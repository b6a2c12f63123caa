"""Server-sent events from bytes, however they are cut. Only `data` fields; comments and other fields are skipped."""

from __future__ import annotations

MAX_EVENT_BYTES = 512 << 10
"""An event becomes a delta on the bus, whose limit is 1 MiB where it is least; msgpack is never longer than the JSON was."""


class EventTooBigError(Exception):
    """The server sent more than `MAX_EVENT_BYTES` without ending an event."""


class SseReader:
    """Splits a byte stream into the data of its events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take bytes; return the data of the events that are complete. Raises `EventTooBigError`."""
        # A lone CR as line end is legal and unheard of; here CR is only stripped before LF.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            self._take_line(line.rstrip(b"\r"), events)
        if len(self._rest) + self._data_bytes > MAX_EVENT_BYTES:
            raise EventTooBigError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def _take_line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
            self._data.clear()
            self._data_bytes = 0
        elif line.startswith(b"data:"):
            data = line[5:].removeprefix(b" ")
            self._data.append(data)
            self._data_bytes += len(line)  # with the field's name: empty ones must not be free
