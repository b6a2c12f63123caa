"""Small messages of one engine and one gateway, for tests that care about their travel and not about their content."""

from __future__ import annotations

from shared.ids import EngineId, StreamNo, new_engine_id, new_gateway_id
from shared.messages import Cancel, Delta, Resend, Resent, TokenBatch

E1, E2 = new_engine_id(), new_engine_id()
G1 = new_gateway_id()


def cancel(stream: int, engine: EngineId = E1) -> Cancel:
    """Return a published message."""
    return Cancel(engine=engine, gateway=G1, stream=StreamNo(stream))


def resend(stream: int = 1, engine: EngineId = E1) -> Resend:
    """Return a request."""
    return Resend(engine=engine, gateway=G1, stream=StreamNo(stream), from_seq=0)


async def answer(message: Resend) -> Resent:
    """Answer a request."""
    return Resent(engine=message.engine, stream=message.stream, gone=True)


def batch(text: str) -> TokenBatch:
    """Return a message of about the size of its text."""
    delta = Delta(stream=StreamNo(1), seq=0, choice=0, text=text, token_ids=[1])
    return TokenBatch(gateway=G1, engine=E1, deltas=[delta])
