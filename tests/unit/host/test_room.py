"""What a host gives away, by values."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.host.room import (
    Claim,
    Grant,
    Lack,
    Room,
    claim_of,
)
from shared.ids import ServiceName
from shared.spec.footprint import ENGINE_OVERHEAD_BYTES, memory_needed
from shared.spec.model import (
    GIB,
    EngineSpec,
    KvTiers,
    LLMService,
    Metadata,
    ModelRef,
    ResourceLimits,
)

claims = st.builds(
    Claim,
    memory_bytes=st.integers(0, 12),
    cores=st.integers(0, 3),
    gpus=st.integers(0, 2),
)
moves = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), claims, st.integers(0, 12))),
    max_size=40,
)


def service(**parts: object) -> LLMService:
    made = LLMService(metadata=Metadata(name=ServiceName("s")), model=ModelRef(name="m"))
    return msgspec.structs.replace(made, **parts)


@given(moves)
def test_nothing_is_given_twice_and_all_comes_back(steps):
    room = Room(memory_bytes=20, cores=range(4), gpus=("0", "1"), ports=range(7000, 7003))
    held: dict[str, Grant] = {}
    for name, wish in steps:
        if wish is None:
            room.take_back(name)
            held.pop(name, None)
        elif isinstance(wish, int):
            if name in held and room.promise(name, wish) is None:
                held[name] = room.grant_of(name)
        elif name not in held:
            given_now = room.give(name, wish)
            if isinstance(given_now, Grant):
                held[name] = given_now
        cores = [core for grant in held.values() for core in grant.cores]
        gpus = [gpu for grant in held.values() for gpu in grant.gpus]
        ports = [grant.metrics_port for grant in held.values()]
        assert len(set(cores)) == len(cores)
        assert len(set(gpus)) == len(gpus)
        assert len(set(ports)) == len(ports)
        assert 0 not in ports
        assert sum(grant.memory_bytes for grant in held.values()) <= 20
        assert 4 - len(cores) == len(room.free_cores)

    for name in held:
        room.take_back(name)
    assert (20, 4, 2) == (room.free_memory_bytes, len(room.free_cores), len(room.free_gpus))


def test_ports_that_are_all_given_away_are_said_with_what_to_change():
    room = Room(ports=[7001])
    room.give("a", Claim())

    lack = room.give("b", Claim())

    assert isinstance(lack, Lack)
    assert "widen metrics-ports" in lack.reason


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Claim(memory_bytes=2 * GIB), "2.0 GiB of memory, 1.0 GiB are free"),
        (Claim(cores=3), "3 cores, 2 of 2 are free"),
        (Claim(gpus=1), "1 GPUs, 0 of 0 are free"),
    ],
)
def test_what_lacks_is_said_with_its_figures(claim, words):
    lack = Room(memory_bytes=GIB, cores=(0, 1)).give("a", claim)

    assert isinstance(lack, Lack)
    assert words in lack.reason


def test_where_memory_is_not_known_nobody_is_refused_for_it():
    assert isinstance(Room().give("a", Claim(memory_bytes=GIB)), Grant)


def test_a_claim_is_what_the_service_says_or_what_its_engine_takes():
    kv = KvTiers(pool_bytes=5, host_bytes=7)
    said = service(kv=kv, resources=ResourceLimits(memory_bytes=9, cpu=1.5, gpu=1))

    assert Claim(memory_bytes=9, cores=2, gpus=1) == claim_of(said)
    assert ENGINE_OVERHEAD_BYTES + 12 == claim_of(service(kv=kv)).memory_bytes
    on_gpu = service(kv=kv, resources=ResourceLimits(gpu=1))
    assert ENGINE_OVERHEAD_BYTES + 7 == claim_of(on_gpu).memory_bytes
    assert 0 == claim_of(service(engine=EngineSpec(backend="fake"))).memory_bytes


def test_weights_count_where_no_limit_is_said():
    def more(spec: LLMService) -> int:
        return memory_needed(spec, weight_bytes=10) - memory_needed(spec)

    assert 20 == more(service())
    assert 10 == more(service(resources=ResourceLimits(gpu=1)))
    assert 0 == more(service(resources=ResourceLimits(memory_bytes=1)))
    assert 0 == more(service(engine=EngineSpec(backend="fake")))
