"""Whatever decodes does no harm: not to the tracer, not to the gateway's picture of the fleet, not to a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.console import status
from services.console.insight.blame_table import table
from services.console.insight.found import Found, founds, told
from services.console.insight.lines import Wanted, log_line
from services.console.insight.pulse import Pulse
from services.console.insight.story import story
from services.console.insight.tokens import is_sound, made, sentence
from services.console.insight.top_view import picture
from services.console.insight.usual import usual_of
from services.console.insight.waterfall import counts, heading, waterfall
from services.console.plain import cleaned, in_json, plain
from services.gateway.lookout import Lookout
from services.gateway.routing import Router, RoutingSettings
from services.tracer import wire
from services.tracer.holding import Holding, Item
from services.tracer.request_attributes import Context
from services.tracer.request_metrics import RequestMetrics
from services.tracer.restraint import Restraint
from services.tracer.sampling import Sampler
from services.tracer.spans import trace_of
from shared.blame import LedgerWindow, blame
from shared.ids import GatewayId
from shared.messages import (
    EngineHeartbeat,
    GatewayHeartbeat,
    HostHeartbeat,
    KvStoreHeartbeat,
    LedgerBatch,
    Message,
    OperatorHeartbeat,
    StageBatch,
    StepDetail,
    TracerHeartbeat,
)
from shared.observability import Policies
from tests.support.hostile_messages import Maker

SEEDS = range(4)
EACH = 250
"""Messages of a kind and seed; about half of them decode."""
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def messages(seed: int, *kinds: type[Message]) -> Iterator[Message]:
    found = 0
    for kind in kinds:
        maker = Maker(seed, harm=0.01)
        for _ in range(EACH):
            message = maker.decoded(kind)
            if message is not None:
                found += 1
                yield message
    assert found > EACH * len(kinds) / 5, "hardly anything decodes: nothing was shown"


def assert_plain(shown: str) -> None:
    assert not CONTROLS.search(plain(shown))


def trace(item: Item) -> None:
    sampler = Sampler(Policies(), limit_per_s=1e6, restraint=Restraint())
    verdict = sampler.decide(item.service, item.ledger, now=1.0)
    context = Context(
        service=item.service, gateway=item.gateway, trace_state=verdict.trace_state, max_spans=50
    )
    assert wire.spans(trace_of(item.ledger, context))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_tracer_makes_traces_and_metrics_of_what_it_reads(seed):
    metrics, holding = RequestMetrics(), Holding()
    for message in messages(seed, LedgerBatch, StageBatch):
        if isinstance(message, StageBatch):
            metrics.observe_stages(message)
            holding.orphans(message, 1.0)
            continue
        metrics.observe(message)
        for one in message.ledgers:
            item = Item(message.service, message.gateway, one)
            holding.ledger(item, 1.0)
            trace(item)
    for item in holding.due(9.0, all_of_them=True):
        metrics.observe(
            LedgerBatch(service=item.service, gateway=item.gateway, ledgers=[item.ledger])
        )
        trace(item)

    registry = CollectorRegistry()
    registry.register(metrics)
    assert b"headrace_requests_total" in generate_latest(registry)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gateway_keeps_its_picture_of_the_fleet(seed):
    settings = RoutingSettings()
    seen = Lookout(Router(settings, seed=1), settings, own=GatewayId("g"), over_commit=1.0)
    for number, message in enumerate(messages(seed, EngineHeartbeat, GatewayHeartbeat)):
        if isinstance(message, EngineHeartbeat):
            seen.engine_beat(message, now=number / 10, unix_s=7)
            seen.limit(message.service)
        elif isinstance(message, GatewayHeartbeat):
            seen.gateway_beat(message)
        seen.tick(number / 10, is_listening=True)
        assert seen.present() is not None

    for later in range(40):
        seen.tick(1e6 + later / 10, is_listening=True)
    assert 0 == seen.ready()
    assert [] == seen.present()


def show(found: Found) -> None:
    ledger = found.ledger
    parts = [
        heading(found, {}),
        waterfall(ledger),
        counts(found, {}),
        story(found, None, {}, {}),
        [log_line(found, Wanted(), {})],
    ]
    assert all("\n" not in line for part in parts for line in part), "a name broke a line"
    assert_plain("\n".join(line for part in parts for line in part))
    document = in_json(msgspec.json.encode(told(found)).decode())
    assert not CONTROLS.search(document)
    assert ledger.request == json.loads(document)["request"]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_console_shows_requests_line_by_line_and_without_escapes(seed):
    window, pulse = LedgerWindow(), Pulse(0.0)
    for message in messages(seed, LedgerBatch):
        for found in founds(message):
            show(found)
            window.add(found.ledger)
            pulse.hear_request(found, 1.0)

    assert_plain(table(blame(window), "m", {}))
    usual_of(window)
    assert_plain(picture(pulse.now(2.0), "top"))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_console_shows_who_beats_line_by_line_and_without_escapes(seed):
    pulse = Pulse(0.0)
    engines, gateways, tracers, stores, hosts, operators = [], [], [], [], [], []
    kinds = (
        *(EngineHeartbeat, GatewayHeartbeat, TracerHeartbeat, KvStoreHeartbeat, StageBatch),
        *(HostHeartbeat, OperatorHeartbeat),
    )
    for message in messages(seed, *kinds):
        match message:
            case EngineHeartbeat():
                pulse.hear_engine(message, 1.0)
                engines.append(status.engine_line(cleaned(message)))
            case GatewayHeartbeat():
                pulse.hear_gateway(message, 1.0)
                gateways.append(status.gateway_line(cleaned(message)))
            case TracerHeartbeat():
                pulse.hear_tracer(message, 1.0)
                tracers.append(status.tracer_line(cleaned(message)))
            case KvStoreHeartbeat():
                stores.append(status.kv_store_line(cleaned(message)))
            case HostHeartbeat():
                hosts.append(status.host_line(cleaned(message)))
            case OperatorHeartbeat():
                operators.append(status.operator_line(cleaned(message)))
            case StageBatch():
                pulse.hear_steps(message, 1.0)

    now = pulse.now(1.0)
    shown = picture(now, "top")
    lines = len(now.engines) + len(now.gateways) + len(now.tracers)
    assert_plain(shown)
    assert len(shown.split("\n")) <= lines + 2 * len(now.services) + 12, "a name broke a line"
    groups = (engines, gateways, tracers, stores, hosts, operators)
    listed = status.table(status.Picture(*groups))
    # A heading each, and a free line between two.
    assert len(listed.split("\n")) == sum(map(len, groups)) + 2 * len(groups) - 1


@pytest.mark.parametrize("seed", SEEDS)
def test_what_an_engine_tells_of_its_steps_is_read_or_refused(seed):
    for message in messages(seed, StepDetail):
        assert isinstance(message, StepDetail)
        if is_sound(message):
            for token in (1, 2, 8, 201, 10**6 + 1):
                assert all(sentence(one, has_choices=True) for one in made(message, token))
