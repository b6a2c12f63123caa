"""What a caller is told of its own request's time, where it asks for it. Pure."""

from __future__ import annotations

import msgspec

from shared.ids import EngineId, RequestId
from shared.messages import STAGES

_MS = 1000.0
_encode = msgspec.json.Encoder().encode


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The account of a request when its last piece was made; only the handing over of that piece is missing."""

    request: RequestId
    us: list[int]
    """Microseconds by stage, in the order of `STAGES`."""
    ttft_us: int
    """First byte read to first delta; 0: there was none."""
    engine: EngineId
    is_estimated: bool

    def server_timing(self) -> str:
        """Return the value of a `Server-Timing` field: milliseconds by stage, to the first token, and in all."""
        named = [
            *zip(STAGES, self.us, strict=True),
            ("ttft", self.ttft_us),
            ("total", self._wall_us),
        ]
        return ", ".join([f"{name};dur={us / _MS:.3f}" for name, us in named])

    def json(self) -> bytes:
        """Return it as a JSON object in one line; its fields are documented in docs/reference/http-api.md."""
        return _encode(
            {
                "request": self.request,
                "wall_ms": self._wall_us / _MS,
                "ttft_ms": self.ttft_us / _MS,
                "stages_ms": {stage: us / _MS for stage, us in zip(STAGES, self.us, strict=True)},
                "engine": self.engine,
                "is_estimated": self.is_estimated,
            }
        )

    @property
    def _wall_us(self) -> int:
        return sum(self.us)
