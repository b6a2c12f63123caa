"""The codec: what goes in comes out, what is none is `Undecodable`, whatever the bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.codec import decode, decode_reply, encode, tag_of
from shared.errors import Undecodable
from shared.ids import EngineId, GatewayId, StreamNo
from shared.messages import (
    ALL_MESSAGES,
    Accepted,
    Cancel,
    Delta,
    Message,
    Refused,
    RefuseReason,
    Resent,
    Submit,
    TokenBatch,
)

E1, G1 = EngineId("e1"), GatewayId("g1")

deltas = st.builds(
    Delta,
    stream=st.integers(0, 2**63).map(StreamNo),
    seq=st.integers(0, 2**31),
    choice=st.integers(0, 127),
    text=st.text(max_size=20),
    token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=5),
)


@given(st.lists(deltas, max_size=5))
def test_a_batch_comes_out_as_it_went_in(found: list[Delta]):
    batch = TokenBatch(gateway=G1, engine=E1, deltas=found)

    assert batch == decode(TokenBatch, encode(batch))


@given(st.binary(max_size=200), st.sampled_from(ALL_MESSAGES))
def test_random_bytes_are_undecodable_or_a_message(payload: bytes, kind: type[Message]):
    try:
        message = decode(kind, payload)
    except Undecodable:
        return

    assert isinstance(message, kind)


@given(st.data(), st.sampled_from([TokenBatch, Cancel]))
def test_a_cut_off_message_is_undecodable(data: st.DataObject, kind: type[Message]):
    whole = encode(
        TokenBatch(gateway=G1, engine=E1, deltas=[])
        if kind is TokenBatch
        else Cancel(engine=E1, gateway=G1, stream=StreamNo(1))
    )
    length = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(Undecodable):
        decode(kind, whole[:length])


def test_a_reply_is_one_of_those_that_the_route_allows():
    accepted = Accepted(engine=E1, stream=StreamNo(1), prompt_tokens=3)
    refused = Refused(engine=E1, stream=StreamNo(1), reason=RefuseReason.INVALID, message="no")

    assert accepted == decode_reply(Submit, encode(accepted))
    assert refused == decode_reply(Submit, encode(refused))
    with pytest.raises(Undecodable, match="reply to Submit"):
        decode_reply(Submit, encode(Resent(engine=E1, stream=StreamNo(1))))


def test_the_error_names_type_and_size_and_no_content():
    payload = msgspec.msgpack.encode(
        {"t": "gateway.cancel.v1", "engine": 5, "gateway": "the secret prompt", "stream": 1}
    )

    with pytest.raises(Undecodable, match=r"Cancel: .*\$\.engine.* \(\d+ bytes\)") as failure:
        decode(Cancel, payload)

    assert "secret" not in str(failure.value)


def test_tags_are_those_of_the_contract():
    assert "engine.tokens.v1" == tag_of(TokenBatch)
