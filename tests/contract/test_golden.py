"""The wire stays readable: what was ever written decodes to what it meant, and today's encoder still writes today's samples so."""

from __future__ import annotations

import msgspec
import pytest

from shared.codec import decode, encode, tag_of
from shared.errors import Undecodable
from shared.messages import ALL_MESSAGES, Message
from tests.contract.golden_samples import FOLDER, SAMPLES, content_of, file_of, read_index

INDEX = read_index()
KINDS = {tag_of(kind): kind for kind in ALL_MESSAGES}


def contains(whole: object, part: object) -> bool:
    """Whether every value of `part` stands in `whole`, which may have more fields and, in arrays of fields, a longer tail."""
    match whole, part:
        case dict(), dict():
            return all(key in whole and contains(whole[key], value) for key, value in part.items())
        case list(), list():
            return len(whole) >= len(part) and all(
                contains(one, wanted) for one, wanted in zip(whole, part, strict=False)
            )
        case _:
            return whole == part


def test_every_message_type_has_a_sample():
    assert set(ALL_MESSAGES) == {type(sample) for sample in SAMPLES.values()}


def test_every_sample_is_written_and_every_file_is_in_the_index():
    """If this fails for a new sample: `python -m tests.contract.golden_samples`."""
    assert SAMPLES.keys() <= INDEX.keys()
    assert {f"{name}.msgpack" for name in INDEX} == {file.name for file in FOLDER.glob("*.msgpack")}


@pytest.mark.parametrize("name", INDEX)
def test_a_written_sample_still_means_what_it_meant(name: str):
    entry = INDEX[name]
    message: Message = decode(KINDS[entry.tag], file_of(name).read_bytes())

    assert contains(content_of(message), entry.content)


@pytest.mark.parametrize("name", SAMPLES)
def test_todays_encoder_writes_what_older_readers_know(name: str):
    """Bytes may only change by fields that did not exist before, and those are left out while they have their default."""
    if isinstance(content_of(SAMPLES[name]), list):
        old = msgspec.msgpack.decode(file_of(name).read_bytes())
        assert contains(msgspec.msgpack.decode(encode(SAMPLES[name])), old)
    else:
        assert file_of(name).read_bytes() == encode(SAMPLES[name])


@pytest.mark.parametrize("name", INDEX)
def test_fields_of_newer_senders_are_ignored(name: str):
    kind = KINDS[INDEX[name].tag]
    raw = msgspec.msgpack.decode(file_of(name).read_bytes())
    if isinstance(raw, dict):
        raw["a_field_of_tomorrow"] = {"deep": [1, 2]}
    else:
        raw.append({"deep": [1, 2]})

    assert decode(kind, file_of(name).read_bytes()) == decode(kind, msgspec.msgpack.encode(raw))


@pytest.mark.parametrize("name", INDEX)
def test_a_sample_of_another_type_is_undecodable(name: str):
    for tag, kind in KINDS.items():
        if tag != INDEX[name].tag:
            with pytest.raises(Undecodable):
                decode(kind, file_of(name).read_bytes())


def test_tags_are_owner_name_version_and_unique():
    assert len(KINDS) == len(ALL_MESSAGES)
    for tag in KINDS:
        owner, name, version = tag.split(".")
        assert owner in {
            "gateway",
            "engine",
            "tracer",
            "kvstore",
            "operator",
            "host",
            "scaler",
            "console",
        }
        assert name
        assert version.startswith("v")
        assert version[1:].isdigit()
