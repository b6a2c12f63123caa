"""Ten times as many requests as there is room for: who is let in is served in time, the rest is told at once, and nobody starves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.keys import key_line
from tests.support.gateway_process import Site
from tests.support.hostile_clients import Peak, ask, chat_body
from tests.support.nats_server import NatsServer
from tests.support.overload import Kind, overload, summaries

pytestmark = pytest.mark.timeout(120)
SLOTS, STEP_S, TOKENS = 8, 0.04, 10
CAPACITY_PER_S = SLOTS / (STEP_S * TOKENS)
TIMEOUT_S = 4.0
SECONDS = 10.0
FLOOD_PER_S = 10 * CAPACITY_PER_S


@pytest.fixture
def site(nats_server: NatsServer, tmp_path: Path) -> Iterator[Site]:
    """A gateway with two tenants, and an engine with room for 20 requests a second."""
    keys = tmp_path / "keys"
    keys.write_text(key_line("alice", "ka") + "\n" + key_line("bob", "kb") + "\n")
    with Site(nats_server, tmp_path) as made:
        made.key = "ka"
        made.add_gateway("--keys-file", str(keys))
        made.add_engine("--fake-max-streams", str(SLOTS), "--fake-step-s", str(STEP_S))
        asyncio.run(made.ready())
        yield made


def test_ten_times_the_capacity(site):
    kinds = [
        Kind(name="interactive", priority="interactive", per_s=0.04 * FLOOD_PER_S, key="ka"),
        Kind(name="default", per_s=0.46 * FLOOD_PER_S, key="ka"),
        Kind(name="batch", priority="batch", per_s=0.48 * FLOOD_PER_S, key="ka"),
        Kind(name="another tenant", per_s=0.02 * FLOOD_PER_S, key="kb"),
    ]

    async def scenario() -> None:
        port, body = site.ports[0], chat_body(site.service, max_tokens=TOKENS)
        peak = Peak(site.gateways[0].process.pid)
        async with peak.watched():
            answers = await overload(
                port, site.service, kinds, seconds=SECONDS, tokens=TOKENS, timeout_s=TIMEOUT_S
            )
        await site.until_figure("open_calls", 0)
        afterwards = await ask(port, body, "Authorization: Bearer ka")
        got = summaries(answers)
        served = sum(one.served for one in got.values())

        # What is let in is in time; a machine that stands still for a second may cost a few.
        assert 0 == sum(one.broken for one in got.values()), got
        assert sum(one.expired for one in got.values()) <= 0.01 * served, got
        assert all(one.served_max_s < TIMEOUT_S + 1 for one in got.values()), got
        # The engine is kept busy all the time.
        assert served > 0.5 * CAPACITY_PER_S * SECONDS, got
        # The rest is refused at once.
        assert got["default"].refused > got["default"].served
        assert got["default"].refused_p50_s < 0.2, got
        assert got["batch"].refused_p50_s < 0.2, got
        # Interactive before the others; batch keeps a little; another tenant has its share.
        assert got["interactive"].served >= 0.9 * got["interactive"].sent, got
        assert got["another tenant"].served >= 0.9 * got["another tenant"].sent, got
        assert got["batch"].served > 0, got
        # Over as soon as it ends.
        assert 200 == afterwards.status
        assert afterwards.took_s < 3
        assert peak.growth_mib < 60, peak.most_mib

    asyncio.run(scenario())
