"""What a NATS server sends, cut into its frames, and what may go wrong with those that carry messages. No I/O, no clock.

Knows the protocol's framing alone: a line, and for MSG and HMSG as many bytes behind it as the line's last number says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from shared.subjects import matches

CRLF = b"\r\n"
MESSAGE_VERBS = (b"MSG", b"HMSG")


class MessageFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to messages whose subject matches; each ratio is a probability for each message."""

    pattern: str
    """Subject, with NATS's wildcards."""
    drop_ratio: float = 0.0
    duplicate_ratio: float = 0.0
    reorder_ratio: float = 0.0
    """Such a message comes up to `late_s` after its turn, so that others overtake it."""
    late_s: float = 0.03


class Frame(msgspec.Struct, frozen=True):
    """One frame with its line ends; `subject` is empty where it carries no message."""

    content: bytes
    subject: str = ""


class FrameSplitter:
    """Cuts a stream of bytes into frames, however it arrives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that are whole now."""
        self._buffer += chunk
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        line_end = self._buffer.find(CRLF)
        if line_end < 0:
            return None
        words = bytes(self._buffer[:line_end]).split()
        size = line_end + len(CRLF)
        subject = ""
        if words and words[0].upper() in MESSAGE_VERBS:
            size += int(words[-1]) + len(CRLF)
            subject = words[1].decode()
            if len(self._buffer) < size:
                return None
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        return Frame(content, subject)


class Mangler:
    """Decides what becomes of each frame; the same seed decides the same."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.dropped = 0
        self.duplicated = 0
        self.reordered = 0

    def fate(self, frame: Frame, faults: MessageFaults | None) -> list[float]:
        """Return for each copy that is to be sent how many seconds late it comes; none: the frame is lost."""
        if faults is None or not _suffers(frame, faults):
            return [0.0]
        draw = self._random.random
        if draw() < faults.drop_ratio:
            self.dropped += 1
            return []
        late_s = 0.0
        if draw() < faults.reorder_ratio:
            self.reordered += 1
            late_s = draw() * faults.late_s
        if draw() < faults.duplicate_ratio:
            self.duplicated += 1
            return [late_s, draw() * faults.late_s]
        return [late_s]


def _suffers(frame: Frame, faults: MessageFaults) -> bool:
    return bool(frame.subject) and matches(faults.pattern.split("."), frame.subject.split("."))
