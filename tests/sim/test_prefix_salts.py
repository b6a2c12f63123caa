"""The salt of a tenant's prefixes goes with each submit, also with the one that continues a lost answer elsewhere."""

from __future__ import annotations

import asyncio

from services.engine.adapters.fake import FakeEngine
from services.engine.ports import Job
from shared.keys import KeyFile, key_line
from tests.support.gateway_world import GatewayWorld, call, play
from tests.support.nats_caller import Asker

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


class Witness(FakeEngine):
    """Remembers what it was asked."""

    def __init__(self, settings) -> None:
        super().__init__(settings)
        self.salts: list[str] = []

    async def submit(self, job: Job) -> int:
        self.salts.append(job.prefix_salt)
        return await super().submit(job)


def keys(tmp_path) -> KeyFile:
    path = tmp_path / "keys"
    path.write_text(f"{key_line('alice', 'ka')}\n{key_line('bob', 'kb')}\n")
    return KeyFile(path)


def salts_of(world: GatewayWorld) -> list[str]:
    return [salt for engine in world.engines for salt in engine.backend.salts]


def asked_by_two(tmp_path, **fields) -> tuple[list[str], KeyFile]:
    seen: list[str] = []
    ring = keys(tmp_path)

    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(keys=ring, **fields)
        await world.add_engine(make=Witness)
        asker = await Asker.join(world)
        for key in ("ka", "kb", "ka"):
            await (await asker.ask(CHAT, authorization=f"Bearer {key}")).one()
        seen.extend(salts_of(world))

    play(scenario)
    return seen, ring


def test_tenants_have_salts_of_their_own(tmp_path):
    seen, ring = asked_by_two(tmp_path)

    assert [ring.salt("alice"), ring.salt("bob"), ring.salt("alice")] == seen
    assert "" not in seen


def test_a_service_that_shares_has_none(tmp_path):
    assert ["", "", ""] == asked_by_two(tmp_path, sharing={"services": ["m"]})[0]


def test_a_body_cannot_name_a_salt(tmp_path):
    async def scenario(world: GatewayWorld) -> None:
        ring = keys(tmp_path)
        await world.add_gateway(keys=ring)
        await world.add_engine(make=Witness)
        asker = await Asker.join(world)
        salt = ring.salt("alice")

        for field in ("cache_salt", "prefix_salt"):
            await (await asker.ask(CHAT | {field: salt}, authorization="Bearer kb")).one()

        assert salt not in salts_of(world)

    play(scenario)


def test_a_continued_answer_keeps_its_salt():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(make=Witness, step_s=0.01)
        await world.add_engine(make=Witness, step_s=0.01)
        recorder, _ = world.start(
            call(max_tokens=100, temperature=0.0), prefix_salt="of its tenant"
        )
        await world.until(lambda: len(recorder.deltas) > 20)

        next(engine for engine in world.engines if engine.live).kill()
        async with asyncio.timeout(3600):
            await recorder.over.wait()

        assert {0} == recorder.finished
        assert ["of its tenant"] * 2 == salts_of(world)

    play(scenario)
