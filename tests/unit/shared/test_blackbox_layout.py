"""The bytes of a black box: what was written comes back, the newest last; what is torn or garbage is left out, and nothing raises."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from shared.blackbox import layout
from shared.blackbox.layout import (
    NOTES,
    SECONDS,
    SIZE_BYTES,
    STEPS,
    TABLES,
    Box,
    DeviceMemory,
    Identity,
    Note,
    ProcessMemory,
    Request,
    Ring,
    Second,
    Step,
    Writer,
    decode,
)
from shared.ids import EngineId, RequestId, ServiceName

IDENTITY = Identity(engine=EngineId("e1"), service=ServiceName("m"), name="engine-0", pid=7)
RINGS = (layout.HEADER, STEPS, SECONDS, TABLES, NOTES)


def step(number: int) -> Step:
    return Step(
        number=number,
        unix_s=1e9 + number,
        us=10_000,
        decodes=8,
        prompts=1,
        prefill_tokens=512,
        recomputed_tokens=3,
        preemptions=2,
        free_blocks=100,
        mode="FLASH_ATTN/graph",
    )


def second(number: int) -> Second:
    return Second(
        unix_s=1e9 + number, state="ready", step=number, running=8, free_blocks=100, oom_kills=1
    )


def request(number: int) -> Request:
    return Request(request=RequestId(f"chatcmpl-{number:024}"), stage="decode", tokens=number)


def filled(steps: int = 40) -> bytearray:
    data = bytearray(SIZE_BYTES)
    writer = Writer(data, IDENTITY)
    for number in range(1, steps + 1):
        writer.step(step(number))
    for number in range(3):
        writer.second(second(number))
        writer.table([request(number)], unix_s=1e9 + number)
    writer.note("ready", unix_s=1e9)
    return data


WHOLE = bytes(filled())


def test_what_was_written_comes_back():
    box = decode(WHOLE)

    assert IDENTITY == box.identity
    assert [step(number) for number in range(1, 41)] == box.steps
    assert [second(number) for number in range(3)] == box.seconds
    assert [Note(unix_s=1e9, what="ready")] == box.notes
    assert box.table is not None
    assert [request(2)] == box.table.requests


def test_a_ring_keeps_the_newest():
    box = decode(bytes(filled(steps=3 * STEPS.slots + 5)))

    assert STEPS.slots == len(box.steps)
    assert list(range(2 * STEPS.slots + 6, 3 * STEPS.slots + 6)) == [s.number for s in box.steps]


def test_rings_neither_overlap_nor_reach_beyond_the_file():
    edges = [(ring.offset, ring.end) for ring in RINGS]

    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(edges))
    assert SIZE_BYTES == edges[-1][1] <= 1 << 20


def test_the_largest_records_have_room():
    data = bytearray(SIZE_BYTES)
    writer = Writer(data, IDENTITY)
    most = 1 << 62
    big = Second(
        unix_s=1e9,
        state="starting",
        step=most,
        step_age_s=1e9,
        running=most,
        waiting=most,
        free_blocks=most,
        total_blocks=most,
        processes=[ProcessMemory(1 << 22, "x" * 15, most)] * 8,
        devices=[DeviceMemory(most, most)] * 8,
        group_bytes=most,
        group_limit_bytes=most,
        oom_kills=most,
    )
    writer.second(big)
    writer.note("x" * 999, "\U0001f6a7" * 999, unix_s=1e9)

    box = decode(bytes(data))

    assert [big] == box.seconds
    assert 1 == len(box.notes)


def test_of_too_many_requests_the_first_are_kept_and_the_rest_counted():
    data = bytearray(SIZE_BYTES)
    Writer(data, IDENTITY).table([request(number) for number in range(4_000)], unix_s=1e9)

    table = decode(bytes(data)).table

    assert table is not None
    assert 4_000 == len(table.requests) + table.left_out
    assert 500 <= len(table.requests)
    assert request(0) == table.requests[0]


def test_a_step_that_cannot_be_is_left_out():
    data = bytearray(SIZE_BYTES)
    writer = Writer(data, IDENTITY)
    for us in (1, -1, 1 << 40, 2):
        writer.step(Step(number=us % 7, unix_s=1.0, us=us))

    assert [1, 2] == [each.us for each in decode(bytes(data)).steps]


def test_a_torn_record_costs_itself_only():
    torn = bytearray(WHOLE)
    at = STEPS.offset + 7 * STEPS.slot_bytes
    torn[at + 30 : at + 60] = bytes(30)

    assert [n for n in range(1, 41) if n != 7] == [s.number for s in decode(bytes(torn)).steps]


def test_a_record_in_another_ones_place_is_none():
    moved = bytearray(WHOLE)
    a, b = (STEPS.offset + slot * STEPS.slot_bytes for slot in (7, 60))
    moved[b : b + STEPS.slot_bytes] = moved[a : a + STEPS.slot_bytes]

    assert 40 == len(decode(bytes(moved)).steps)


@given(st.binary(max_size=20_000))
def test_garbage_is_an_empty_box_or_less_of_one(garbage: bytes):
    assert Box() == decode(garbage)
    assert decode(layout.MAGIC + garbage).steps == []


@given(st.integers(0, SIZE_BYTES))
def test_a_truncated_box_is_a_part_of_the_whole_one(size: int):
    box, whole = decode(WHOLE[:size]), decode(WHOLE)

    assert all(each in whole.steps for each in box.steps)
    assert all(each in whole.seconds for each in box.seconds)
    assert box.identity in {None, whole.identity}


@given(
    st.lists(
        st.tuples(st.integers(0, SIZE_BYTES - 1), st.integers(1, 255)), min_size=1, max_size=200
    )
)
def test_flipped_bytes_leave_nothing_but_what_was_written(flips: list[tuple[int, int]]):
    spoiled = bytearray(WHOLE)
    for at, bits in flips:
        spoiled[at] ^= bits

    box, whole = decode(bytes(spoiled)), decode(WHOLE)

    assert all(each in whole.steps for each in box.steps)
    assert all(each in whole.seconds for each in box.seconds)
    assert all(each in whole.notes for each in box.notes)
    assert box.table is None or box.table.requests in [[request(n)] for n in range(3)]


@given(st.sampled_from([SECONDS, TABLES, NOTES, STEPS]), st.binary(max_size=80))
def test_a_record_whose_checksum_is_right_by_chance_raises_nothing(ring: Ring, payload: bytes):
    data = bytearray(SIZE_BYTES)
    writer = Writer(data, IDENTITY)
    writer._put(ring, 1, payload)

    assert IDENTITY == decode(bytes(data)).identity


def test_a_box_says_only_what_its_types_say():
    """A field that could hold a prompt would show here."""
    texts = {
        (kind.__name__, field.name)
        for kind in (Identity, Step, Second, ProcessMemory, DeviceMemory, Request, Note)
        for field in msgspec.structs.fields(kind)
        if field.type in {str, "str"}
    }

    assert texts == {
        ("Identity", "name"),
        ("Identity", "backend"),
        ("Identity", "version"),
        ("Identity", "host"),
        ("Step", "mode"),
        ("Second", "state"),
        ("ProcessMemory", "name"),
        ("Request", "stage"),
        ("Note", "what"),
        ("Note", "why"),
    }
