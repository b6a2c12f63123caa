"""What `headrace up` would start, by values."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from services.console.fleet import kv_place
from services.console.fleet.command import engine_args, service_name
from services.console.fleet.plan import (
    GIB,
    KV_DISK_BYTES,
    UpOptions,
    check_memory,
    engine_plans,
    gateway_plans,
    kv_budget,
    kv_store_plan,
    memory_needed_bytes,
    tracer_plans,
)
from services.console.fleet.scrape import scrape_config
from services.kvstore.settings import KvStoreSettings
from shared import settings
from shared.errors import UserError
from shared.subjects import token

BOXES = Path("/b")
SECRETS = {
    "gateway": Path("/s/gateway"),
    "engine": Path("/s/engine"),
    "console": Path("/s/console"),
    "tracer": Path("/s/tracer"),
}


def test_each_engine_has_its_own_name_and_the_engine_user():
    plans = engine_plans(
        UpOptions(engines=3, fake=True),
        service="m",
        model=None,
        boxes=BOXES,
        secrets=SECRETS,
        metrics_ports=[7001, 7002, 7003],
    )

    assert ["engine-0", "engine-1", "engine-2"] == [plan.name for plan in plans]
    assert {"/s/engine"} == {plan.env["HEADRACE_ENGINE_NATS_PASSWORD_FILE"] for plan in plans}
    assert {"engine"} == {plan.env["HEADRACE_ENGINE_NATS_USER"] for plan in plans}
    assert ["7001", "7002", "7003"] == [
        plan.args[plan.args.index("--metrics-port") + 1] for plan in plans
    ]


def test_passwords_are_never_on_a_command_line_or_in_the_environment():
    (plan,) = gateway_plans(UpOptions(), secrets=SECRETS, metrics_ports=[7001])

    assert not any("password" in arg for arg in plan.args)
    assert all(key.endswith("_FILE") for key in plan.env if "PASSWORD" in key)


def test_several_gateways_share_the_port_and_one_does_not():
    alone = gateway_plans(UpOptions(), secrets=SECRETS, metrics_ports=[7001])
    three = gateway_plans(
        UpOptions(gateways=3, port=8123), secrets=SECRETS, metrics_ports=[7001, 7002, 7003]
    )

    assert "--http-reuse-port" not in alone[0].args
    assert ["gateway-0", "gateway-1", "gateway-2"] == [plan.name for plan in three]
    for plan in three:
        assert "true" == plan.args[plan.args.index("--http-reuse-port") + 1]
        assert "8123" == plan.args[plan.args.index("--http-port") + 1]


def test_a_tracer_runs_unless_it_is_not_wanted_and_knows_the_collector():
    wanted = UpOptions(otlp="http://c:4318", trace_policies="p.yaml", metrics_port=9200)
    (plan,) = tracer_plans(wanted, secrets=SECRETS)

    args = dict(zip(plan.args[::2], plan.args[1::2], strict=True))
    assert {
        "--otlp-url": "http://c:4318",
        "--policies": "p.yaml",
        "--metrics-port": "9200",
    } == args
    assert ("services.tracer", "/s/tracer") == (
        plan.module,
        plan.env["HEADRACE_TRACER_NATS_PASSWORD_FILE"],
    )
    assert ("--metrics-port", "9103") == tracer_plans(UpOptions(), secrets=SECRETS)[0].args
    assert [] == tracer_plans(UpOptions(tracer=False), secrets=SECRETS)


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        (UpOptions(), "vllm"),
        (UpOptions(fake=True), "fake"),
        (UpOptions(upstream="http://127.0.0.1:1/v1"), "openai"),
    ],
)
def test_backend_follows_the_options(options, backend):
    (plan,) = engine_plans(
        options, service="m", model=Path("/m"), boxes=BOXES, secrets=SECRETS, metrics_ports=[7001]
    )

    assert backend == options.backend
    assert backend == plan.args[plan.args.index("--backend") + 1]


def test_an_engine_gets_as_long_to_stop_as_it_may_drain():
    (plan,) = engine_plans(
        UpOptions(fake=True, drain_s=12.0),
        service="m",
        model=None,
        boxes=BOXES,
        secrets=SECRETS,
        metrics_ports=[7001],
    )

    assert plan.stop_s > 12.0


def test_only_vllm_needs_memory():
    assert 0 == memory_needed_bytes(UpOptions(fake=True, engines=9), weight_bytes=GIB)
    assert memory_needed_bytes(UpOptions(engines=2), weight_bytes=GIB) > 2 * 3 * GIB


def test_too_little_memory_is_told_with_the_numbers_and_what_to_change():
    with pytest.raises(UserError, match=r"need about .* GiB .* 1\.0 GiB are free") as caught:
        check_memory(UpOptions(engines=4), weight_bytes=GIB, available_bytes=GIB)

    assert "--engines" in caught.value.hint


@pytest.mark.parametrize(
    ("model", "service"),
    [("smollm2", "smollm2"), ("Qwen2.5-0.5B", "Qwen2-5-0-5B"), ("a b*>", "a-b"), ("..", "model")],
)
def test_a_models_name_becomes_a_name_that_the_bus_can_carry(model, service):
    assert service == token(service_name(model))


def test_settings_of_the_engine_are_given_as_pairs():
    assert ("--vllm-max-num-seqs", "64") == engine_args(["vllm-max-num-seqs=64"])
    with pytest.raises(UserError, match="KEY=VALUE"):
        engine_args(["vllm-max-num-seqs"])


def test_prometheus_is_told_of_every_process_with_its_name():
    options = UpOptions(engines=2, gateways=2, fake=True, metrics_port=7000)
    plans = [
        *gateway_plans(options, secrets=SECRETS, metrics_ports=[7001, 7002]),
        *engine_plans(
            options,
            service="m",
            model=None,
            boxes=BOXES,
            secrets=SECRETS,
            metrics_ports=[7003, 7004],
        ),
        *tracer_plans(options, secrets=SECRETS),
    ]

    config = yaml.safe_load(scrape_config(plans, rules=Path("/a folder/rules")))

    assert ["/a folder/rules/*.yml"] == config["rule_files"]
    targets = {
        (job["job_name"], target, group["labels"]["process"])
        for job in config["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert {
        ("headrace-gateway", "127.0.0.1:7001", "gateway-0"),
        ("headrace-gateway", "127.0.0.1:7002", "gateway-1"),
        ("headrace-engine", "127.0.0.1:7003", "engine-0"),
        ("headrace-engine", "127.0.0.1:7004", "engine-1"),
        ("headrace-tracer", "127.0.0.1:7000", "tracer"),
    } == targets


def test_a_store_runs_beside_engines_of_ours_only_and_where_it_is_wanted():
    assert UpOptions().has_kv_store
    assert not UpOptions(kv_disk_bytes=0).has_kv_store
    assert not UpOptions(fake=True).has_kv_store
    assert not UpOptions(upstream="http://127.0.0.1:1").has_kv_store


def test_the_store_takes_what_was_said_or_a_quarter_of_what_is_free():
    assert 7 == kv_budget(UpOptions(kv_disk_bytes=7), free_bytes=1)
    assert GIB == kv_budget(UpOptions(), free_bytes=4 * GIB)
    assert KV_DISK_BYTES == kv_budget(UpOptions(), free_bytes=1000 * GIB)


def test_the_store_is_told_its_folders_whatever_is_in_their_names():
    plan = kv_store_plan(
        UpOptions(kv_store="/p/kv.sock"),
        folders=[Path("/a, b/kv"), Path("/c/kv")],
        budget_bytes=9,
        secrets={**SECRETS, "kvstore": Path("/s/kvstore")},
        metrics_port=7003,
    )
    chosen = settings.load(KvStoreSettings, prefix="NONE_", argv=plan.args)

    assert ("/a, b/kv", "/c/kv") == chosen.folders
    assert ("/p/kv.sock", 9, 7003) == (chosen.socket, chosen.budget_bytes, chosen.metrics_port)
    assert "/s/kvstore" == plan.env["HEADRACE_KVSTORE_NATS_PASSWORD_FILE"]


def test_folders_of_the_store_are_checked_before_anything_starts(tmp_path):
    assert [tmp_path / "kv"] == kv_place.folders((), default=tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        kv_place.folders((str(tmp_path / "absent" / "kv"),), default=tmp_path)
    with pytest.raises(UserError, match="same folder twice"):
        kv_place.folders((str(tmp_path / "a"), str(tmp_path / "b" / ".." / "a")), default=tmp_path)
    with pytest.raises(UserError, match="3 times"):
        kv_place.folders(("/a", "/b", "/c"), default=tmp_path)


def test_the_socket_has_a_short_path_of_this_user_alone(tmp_path):
    assert tmp_path / "kv.sock" == kv_place.socket_path(tmp_path)
    deep = tmp_path / ("x" * 120)
    short = kv_place.socket_path(deep)

    assert len(str(short)) < 100
    assert short == kv_place.socket_path(deep)
    assert 0o700 == short.parent.stat().st_mode & 0o777
    short.parent.chmod(0o777)
    with pytest.raises(UserError, match="used by others"):
        kv_place.socket_path(deep)
    short.parent.rmdir()


@pytest.mark.parametrize(
    ("options", "wanted", "unwanted"),
    [
        (
            UpOptions(kv_host_bytes=7, kv_store="/s", kv_min_tokens=0),
            ["--kv-host-bytes", "7", "--kv-min-tokens", "0", "--kv-store", "/s"],
            [],
        ),
        (UpOptions(kv_host_bytes=7), ["--kv-host-bytes", "7"], ["--kv-store"]),
        # What comes from disk comes through host memory.
        (UpOptions(kv_host_bytes=0, kv_store="/s"), ["--kv-host-bytes", "0"], ["--kv-store"]),
        (UpOptions(fake=True, kv_store="/s"), [], ["--kv-host-bytes", "--kv-store"]),
    ],
)
def test_engines_learn_of_host_memory_and_store(options, wanted, unwanted):
    (plan,) = engine_plans(
        options, service="m", model=Path("/m"), boxes=BOXES, secrets=SECRETS, metrics_ports=[7001]
    )

    assert set(wanted) <= set(plan.args)
    assert not set(unwanted) & set(plan.args)


def test_host_memory_counts_when_engines_are_fitted_in():
    none = UpOptions(engines=2, kv_host_bytes=0)
    some = UpOptions(engines=2, kv_host_bytes=5)

    assert 10 == memory_needed_bytes(some, weight_bytes=1) - memory_needed_bytes(
        none, weight_bytes=1
    )
