"""Prefix warmth: what a prompt begins with, as hashes, and which of such beginnings an engine holds KV blocks for.

The hashes are made in `shared.prefixes`; nobody else needs to know how. All numbers in byte strings are little-endian.
"""

from __future__ import annotations

from shared.ids import EngineId, GatewayId, ServiceName
from shared.messages.parts import Count, Message, Value

WARM_L1 = 1
"""In the engine's own block pool: nothing to do."""
WARM_L2 = 2
"""In host memory: a copy away."""
WARM_L3 = 4
"""In the store of the host, on disk: a read away."""


class Chain(Value, frozen=True, array_like=True, gc=False):
    """The beginning of a prompt in pieces: each hash stands for all text up to the end of its piece. Salted per tenant."""

    text_bytes: Count
    """Length of the canonical text, tools included."""
    head_bytes: Count
    """Length of the tools, which are the first piece; 0: there are none."""
    hashes: bytes
    """64 bits a piece."""


class Warmth(Message, tag="engine.warmth.v1", array_like=True, frozen=True, kw_only=True):
    """What an engine holds has changed. Sent at most once a tick, while there is news; may be lost, then `seq` shows it."""

    service: ServiceName
    engine: EngineId
    seq: Count
    """From 1, by one; heartbeats have the latest (`EngineHeartbeat.warmth_seq`)."""
    hashes: bytes
    """64 bits a piece that changed."""
    tiers: bytes
    """For each of them where it is now: `WARM_L1`, `WARM_L2` and `WARM_L3` added up; 0: nowhere any more."""
    store: str = ""
    """The store that L3 means: what one engine of a host put there is there for the others too. Empty: it has none."""
    is_guess: bool = False
    """The backend does not tell; this is what was sent to it lately, up to the size of its pool."""


class WarmthWhole(
    Message, tag="engine.warmth_whole.v1", array_like=True, frozen=True, kw_only=True
):
    """All that an engine holds, as of `seq`: answer to `WarmthQuery`."""

    engine: EngineId
    seq: Count
    hashes: bytes
    tiers: bytes
    store: str = ""
    is_guess: bool = False


class WarmthQuery(Message, tag="gateway.warmth.v1", frozen=True, kw_only=True):
    """A gateway is new, or missed news: it asks for the whole. Answered by `WarmthWhole`."""

    engine: EngineId
    gateway: GatewayId
