"""Token messages lost, doubled and late between a real NATS server and a gateway: each client has each token once all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from shared.messages import ROUTES, TokenBatch
from shared.subjects import fill
from tests.support.fault_proxy import LinkFaults
from tests.support.faulty_site import AT_ONCE, PROMPTS, FaultySite, faulty_site
from tests.support.nats_frames import MessageFaults
from tests.support.stream_load import tally

pytestmark = [pytest.mark.timeout(120), pytest.mark.nats]

TOKENS = fill(ROUTES[TokenBatch].subject, {})
STREAMS = 64


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultySite]:
    # A lost last token leaves no gap to see; waiting for the silence after it is most of the time here.
    with faulty_site(tmp_path_factory.mktemp("tokens"), "--streams-quiet-s", "1", seed=3) as made:
        yield made


@pytest.mark.parametrize(
    "faults",
    [
        MessageFaults(pattern=TOKENS, drop_ratio=0.05),
        MessageFaults(pattern=TOKENS, duplicate_ratio=0.3),
        MessageFaults(pattern=TOKENS, reorder_ratio=0.3),
        MessageFaults(pattern=TOKENS, drop_ratio=0.05, duplicate_ratio=0.3, reorder_ratio=0.3),
    ],
    ids=["drop", "duplicate", "reorder", "all"],
)
def test_each_client_has_each_token_once(site, faults):
    async def scenario() -> None:
        mangler = site.gateway.mangler
        before = mangler.dropped, mangler.duplicated, mangler.reordered
        async with asyncio.timeout(60):
            expected = await site.expected()
            site.proxy.set(LinkFaults(messages=faults), site.gateway)
            try:
                outcomes = await site.load().run(PROMPTS[:STREAMS], concurrency=AT_ONCE)
            finally:
                site.proxy.heal()

        ratios = faults.drop_ratio, faults.duplicate_ratio, faults.reorder_ratio
        after = mangler.dropped, mangler.duplicated, mangler.reordered
        for ratio, was, now in zip(ratios, before, after, strict=True):
            assert (ratio > 0) == (now > was)
        seen = tally(outcomes, expected)
        assert (STREAMS, 0, 0, 0) == (seen.streams, seen.failed, seen.wrong, seen.continued)
        await site.check_calm()

    asyncio.run(scenario())
