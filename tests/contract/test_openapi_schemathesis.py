"""What the OpenAPI document says is what a real gateway does: schemathesis makes requests from it, good and bad, and checks the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, openapi
from schemathesis.specs.openapi import checks

from services.gateway.openai.limits import RequestLimits
from services.gateway.openai.openapi import document
from tests.support.gateway_process import Site
from tests.support.nats_server import NatsServer

SERVICE = "m"
DEADLINE_S = 20.0
SCHEMA = openapi.from_dict(json.loads(document(version="0", limits=RequestLimits())))
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
OUR_FAULT = (500, 501, 502)


@pytest.fixture(scope="module")
def gateway(
    nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Site, requests.Session]]:
    """A gateway, an engine that answers quickly, and connections to them."""
    with Site(nats_server, tmp_path_factory.mktemp("described")) as site:
        site.add_gateway()
        site.add_engine("--fake-step-s", "0.0005", "--fake-answer-tokens", "8")
        asyncio.run(site.ready())
        with requests.Session() as session:
            yield site, session


def asked_for(site: Site, case: Case, *, is_ours: bool) -> Case:
    """Return the case, asking for a model that there is, and for a short answer."""
    body: Any = case.body
    if is_ours and isinstance(body, dict):
        body |= {"model": site.service}
        for field in ("max_tokens", "max_completion_tokens", "n"):
            if isinstance(body.get(field), int):
                body[field] = min(body[field], 4)
    return case


def call(gateway: tuple[Site, requests.Session], case: Case, found: list[Any]) -> None:
    """Ask, and check the answer."""
    site, session = gateway
    response = case.call(base_url=site.url(), session=session, timeout=DEADLINE_S)
    assert response.status_code not in OUR_FAULT, response.text
    case.validate_response(response, checks=found)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.label)
def test_good_requests_get_what_is_described(gateway, operation):
    examples = 40 if operation.method == "post" else 5

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=GenerationMode.POSITIVE), st.booleans())
    def play(case: Case, is_ours: bool) -> None:
        call(gateway, asked_for(gateway[0], case, is_ours=is_ours), CHECKS)

    play()


POSTS = [each for each in OPERATIONS if each.method == "post"]


@pytest.mark.parametrize("operation", POSTS, ids=lambda each: each.label)
def test_each_event_of_a_stream_is_as_described(gateway, operation):
    asked = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        "/v1/completions": {"prompt": "hi"},
    }[operation.path]
    body = asked | {"stream": True, "max_tokens": 4, "stream_options": {"include_usage": True}}
    case = operation.Case(body=body, media_type="application/json")

    call(gateway, asked_for(gateway[0], case, is_ours=True), CHECKS)


@pytest.mark.parametrize("operation", POSTS, ids=lambda each: each.label)
def test_bad_requests_are_refused_as_described(gateway, operation):
    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), st.booleans())
    def play(case: Case, is_ours: bool) -> None:
        call(gateway, asked_for(gateway[0], case, is_ours=is_ours), CHECKS)

    play()


def test_the_gateway_has_nothing_left_of_it_all(gateway):
    site, _ = gateway

    asyncio.run(site.until_figure("open_calls", 0))
    answer = asyncio.run(site.ask({"messages": [{"role": "user", "content": "hi"}]}))
    assert answer["choices"][0]["message"]["content"]
