"""What declared services say of their requests holds where a request does not say, and never against what it says."""

from __future__ import annotations

import msgspec
import pytest

from services.gateway.call import ApiError
from services.gateway.openai.limits import RequestLimits
from services.gateway.outlet import Caller
from services.gateway.reception import HTTP, Reception
from services.gateway.rules import ANY, Rules
from services.gateway.sharing import SharingSettings
from shared.entry import Entry
from shared.health import Health, HealthState
from shared.ids import ServiceName, TenantId
from shared.keys import KeyFile
from shared.messages import Priority, ServiceRecord
from shared.spec.model import KvTiers, LLMService, SamplingConfig
from shared.spec.writing import to_document
from tests.support.specs import service

CHAT = ServiceName("chat")
FULL = SamplingConfig(
    temperature=0.25,
    top_p=0.5,
    top_k=7,
    min_p=0.1,
    repetition_penalty=1.5,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    max_tokens=77,
    stop=("END",),
)


def entry(spec: LLMService, number: int = 1) -> Entry[ServiceRecord]:
    record = ServiceRecord(
        service=spec.name, spec=to_document(spec), generation=number, revision="r"
    )
    return Entry(record, number)


def rules(*specs: LLMService) -> Rules:
    found = Rules(SharingSettings())
    found.take({spec.name: entry(spec) for spec in specs})
    return found


def reception(found: Rules) -> Reception:
    health = Health()
    health.move(HealthState.READY)
    return Reception(KeyFile(None), RequestLimits(), health, found)


def caller(desk: Reception, kind: str = "chat", tenant: str = "anonymous") -> Caller:
    one = desk.caller(HTTP, kind, {}.get, received_at=0.0)  # type: ignore[arg-type]
    one.tenant = TenantId(tenant)
    return one


def body(**fields: object) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    return msgspec.json.encode({"model": "chat", "messages": messages, **fields})


def test_defaults_stand_in_for_what_a_request_leaves_out():
    desk = reception(rules(service(sampling=FULL)))
    sampling = desk.parse(caller(desk), body()).sampling
    for name in FULL.__struct_fields__:
        assert getattr(sampling, name) == getattr(FULL, name), name


def test_what_a_request_says_holds_also_where_it_is_zero():
    desk = reception(rules(service(sampling=FULL)))
    said = {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": 5,
    }
    sampling = desk.parse(caller(desk), body(**said, stop=[])).sampling
    assert {name: getattr(sampling, name) for name in said} == said
    assert sampling.stop == ()


def test_completions_have_the_defaults_too_and_openais_length_without_any():
    text = msgspec.json.encode({"model": "chat", "prompt": "hi"})
    desk = reception(rules(service(sampling=FULL)))
    assert desk.parse(caller(desk, "completion"), text).sampling.max_tokens == 77
    plain = reception(rules())
    assert plain.parse(caller(plain, "completion"), text).sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("declared", "asked", "found"),
    [
        ("default", {}, None),
        ("batch", {}, Priority.BATCH),
        ("interactive", {}, Priority.INTERACTIVE),
        ("batch", {"service_tier": "priority"}, Priority.INTERACTIVE),
    ],
)
def test_the_class_of_a_service_is_that_of_requests_that_do_not_say(declared, asked, found):
    desk = reception(rules(service(priority=declared)))
    assert desk.parse(caller(desk), body(**asked)).priority == found


def test_a_tenant_that_may_not_use_a_service_does_not_see_it():
    desk = reception(rules(service(api_keys=("finance",)), service("open")))
    assert desk.parse(caller(desk, tenant="finance"), body()).model == "chat"
    with pytest.raises(ApiError) as caught:
        desk.parse(caller(desk, tenant="sales"), body())
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    found = rules(service(api_keys=("finance",)), service("open"))
    both = [CHAT, ServiceName("open")]
    assert found.visible(both, "finance") == both
    assert found.visible(both, "sales") == ["open"]


def test_prefixes_are_shared_where_the_service_says_so():
    found = rules(service(kv=KvTiers(share_across="service")), service("apart"))
    assert found.salt("own", "chat") == ""
    assert found.salt("own", "apart") == "own"
    assert found.salt("own", "undeclared") == "own"


def test_rules_follow_their_records():
    found = rules(service(sampling=FULL))
    found.take({CHAT: entry(service(), 2)})
    assert found.of("chat") == ANY
    found.take({CHAT: entry(service(priority="batch"), 3)})
    assert found.of("chat").priority is Priority.BATCH
    found.take({})
    assert found.of("chat") == ANY


def test_a_record_that_cannot_be_read_changes_nothing_and_is_told():
    found = rules(service(priority="batch"))
    broken = ServiceRecord(service=CHAT, spec={"kind": "?"}, generation=2, revision="r")
    found.take({CHAT: Entry(broken, 2)})
    assert found.of("chat").priority is Priority.BATCH
    assert "apiVersion" in found.unreadable["chat"]
