"""What collectors answer, read without generated classes, against the classes; and addresses of collectors."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from services.tracer.adapters.collectors import is_grpc, make_exporter, parse_headers
from services.tracer.adapters.otlp_answers import retry_after_s, taken
from services.tracer.adapters.otlp_http import pause_s
from services.tracer.adapters.policy_file import policies_of
from services.tracer.ports import Taken
from services.tracer.settings import OtlpSettings
from shared.errors import UserError
from shared.ids import ServiceName
from shared.settings import Secret


@pytest.mark.parametrize(("rejected", "message"), [(0, ""), (7, "too old"), (1 << 40, "é" * 99)])
def test_a_partial_success(rejected, message):
    response = ExportTraceServiceResponse(
        partial_success=ExportTracePartialSuccess(rejected_spans=rejected, error_message=message)
    )

    assert Taken(rejected, message, 9) == taken(response.SerializeToString(), wire_bytes=9)
    assert Taken() == taken(ExportTraceServiceResponse().SerializeToString())


def test_the_pause_that_a_status_asks_for():
    detail = AnyMessage()
    detail.Pack(RetryInfo(retry_delay=Duration(seconds=12, nanos=500_000_000)))
    other = AnyMessage()
    other.Pack(Duration(seconds=99))

    assert 12.5 == retry_after_s(Status(code=8, details=[other, detail]).SerializeToString())
    assert retry_after_s(Status(code=8, details=[other]).SerializeToString()) is None
    assert retry_after_s(b"") is None


@settings(max_examples=100)
@given(st.binary(max_size=40))
def test_no_bytes_are_a_fault(noise):
    taken(noise)
    retry_after_s(noise)
    taken(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + noise)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("", None),
        ("soon", None),
        ("²", None),
        ("-7", None),
        ("Mon, 01 Jan 9999999999 00:00:00 GMT", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 60.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
    ],
)
def test_retry_after(header, seconds):
    assert seconds == pause_s(header, unix_s=lambda: 40.0)


@pytest.mark.parametrize(
    ("url", "protocol", "grpc"),
    [
        ("http://c:4318", "auto", False),
        ("http://c:4317", "auto", True),
        ("https://c/otlp/v1/traces", "auto", False),
        ("grpc://c:9999", "auto", True),
        ("grpcs://c:9999", "grpc", True),
        ("http://c:4318", "grpc", True),
        ("http://c:4317", "http", False),
    ],
)
def test_the_protocol_of_an_address(url, protocol, grpc):
    assert grpc is is_grpc(OtlpSettings(url=url, protocol=protocol))


@pytest.mark.parametrize(
    "url", ["c:4318", "ftp://c", "http://", "http://c:x", "http://user:geheim@c", "grpc://c"]
)
def test_an_address_that_is_none_is_told_without_its_password(url):
    with pytest.raises(UserError) as error:
        make_exporter(OtlpSettings(url=url))

    assert "geheim" not in str(error.value)
    assert "4318" in error.value.hint


def test_http_by_setting_and_grpc_by_address_do_not_go_together():
    with pytest.raises(UserError, match=r"otlp\.protocol"):
        make_exporter(OtlpSettings(url="grpc://c:1", protocol="http"))


def test_no_address_is_no_exporter():
    assert make_exporter(OtlpSettings()) is None


def test_headers():
    assert {"api-key": "a=b", "x": "1"} == parse_headers(" api-key=a=b, x=1 ,")
    with pytest.raises(UserError) as error:
        make_exporter(OtlpSettings(url="http://c", headers=Secret("x=1,geheim")))
    assert "part 2" in str(error.value)
    assert "geheim" not in str(error.value)


def test_policies_come_from_yaml_and_json(tmp_path):
    yaml, json = tmp_path / "p.yaml", tmp_path / "p.json"
    yaml.write_text(
        "services:\n  m:\n    sampling_rate: 20%\n    sensitive_attrs: [layer.attention]\n"
    )
    json.write_text(
        '{"services": {"m": {"samplingRate": "20%", "sensitiveAttrs": ["layer.attention"]}}}'
    )

    one, other = policies_of(str(yaml)), policies_of(str(json))

    assert one == other
    assert 0.2 == one.of(ServiceName("m")).sampling_rate


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "no YAML"),
        ("services: {m: {sampling_rate: x}}", "services.m.sampling_rate"),
        (None, "cannot read"),
    ],
)
def test_a_bad_file_of_policies_is_named(tmp_path, text, told):
    file = tmp_path / "p.yaml"
    if text is not None:
        file.write_text(text)

    with pytest.raises(UserError) as error:
        policies_of(str(file))

    assert str(file) in str(error.value)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
