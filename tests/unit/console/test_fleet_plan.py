"""What `headrace up` would start, by values."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from services.console.fleet import kv_place
from services.console.fleet.command import engine_settings, model_path
from services.console.fleet.plan import (
    GIB,
    KV_DISK_BYTES,
    UpOptions,
    gateway_plans,
    host_plan,
    kv_budget,
    kv_store_plan,
    operator_plan,
    tracer_plans,
)
from services.console.fleet.scrape import scrape_config
from services.console.fleet.service import check_memory, service_name, service_of
from services.host.settings import HostSettings
from services.kvstore.settings import KvStoreSettings
from shared import settings
from shared.errors import UserError
from shared.subjects import token

SECRETS = {
    "gateway": Path("/s/gateway"),
    "engine": Path("/s/engine"),
    "console": Path("/s/console"),
    "tracer": Path("/s/tracer"),
    "host": Path("/s/host"),
    "operator": Path("/s/operator"),
}


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
    ("model", "service"),
    [("smollm2", "smollm2"), ("Qwen2.5-0.5B", "Qwen2-5-0-5B"), ("a b*>", "a-b"), ("..", "model")],
)
def test_a_models_name_becomes_a_name_that_the_bus_can_carry(model, service):
    assert service == token(service_name(model))


def test_settings_of_the_engine_are_given_as_pairs():
    assert {"vllm-max-num-seqs": "64"} == engine_settings(["vllm-max-num-seqs=64"])
    with pytest.raises(UserError, match="KEY=VALUE"):
        engine_settings(["vllm-max-num-seqs"])


@pytest.mark.parametrize(
    ("options", "backend", "model"),
    [
        (UpOptions(), "vllm", "smollm2"),
        (UpOptions(model="/m/Qwen2.5-0.5B/"), "vllm", "/m/Qwen2.5-0.5B/"),
        (UpOptions(fake=True), "fake", "fake"),
        (UpOptions(upstream="http://127.0.0.1:1/v1"), "openai", "openai"),
    ],
)
def test_a_service_is_made_of_the_options(options, backend, model):
    spec = service_of(options)

    assert (backend, model) == (spec.engine.backend, spec.model.name)
    assert options.upstream == spec.engine.url
    assert spec == service_of(options)


def test_what_an_engine_may_take_is_in_its_service():
    spec = service_of(
        UpOptions(
            kv_cache_bytes=5 << 20,
            kv_host_bytes=7,
            kv_min_tokens=3,
            kv_disk_bytes=0,
            max_model_len=9,
            engine_settings={"vllm-max-num-seqs": "64"},
        )
    )

    assert (5 << 20, 7, 3, False) == (
        spec.kv.pool_bytes,
        spec.kv.host_bytes,
        spec.kv.min_tokens,
        spec.kv.disk,
    )
    assert (9, {"vllm-max-num-seqs": "64"}) == (spec.engine.max_model_len, spec.engine.settings)


@pytest.mark.parametrize(("engines", "most"), [(1, 8), (12, 12)])
def test_a_service_of_up_can_be_scaled_further(engines, most):
    scaling = service_of(UpOptions(fake=True, engines=engines)).scaling

    assert (1, most) == (scaling.min_replicas, scaling.max_replicas)


def test_options_that_make_no_service_are_said_at_once():
    with pytest.raises(UserError, match="name"):
        service_of(UpOptions(fake=True, service="a b"))


def test_a_models_directory_is_found_from_anywhere_and_a_name_stays_one(tmp_path):
    (tmp_path / "store" / "stored").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    store = tmp_path / "store"

    assert "stored" == model_path("stored", store)
    assert "smollm2" == model_path("smollm2", store)
    assert "nonesuch" == model_path("nonesuch", store)
    assert str(tmp_path / "own") == model_path(f"{tmp_path}/own/", store)


def test_too_little_memory_is_told_with_the_numbers_and_what_to_change():
    spec = service_of(UpOptions())
    check_memory(service_of(UpOptions(fake=True)), engines=9, weight_bytes=GIB, available_bytes=0)
    with pytest.raises(UserError, match=r"need about .* GiB .* 1\.0 GiB are free") as caught:
        check_memory(spec, engines=4, weight_bytes=GIB, available_bytes=GIB)

    assert "--engines" in caught.value.hint


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


def test_the_host_has_the_platforms_folder_and_a_password_for_engines():
    options = UpOptions(kv_store="/p/kv.sock", drain_s=12.0)
    plan = host_plan(
        options, folder=Path("/p"), models=Path("/m"), secrets=SECRETS, metrics_port=7005
    )
    chosen = settings.load(HostSettings, prefix="NONE_", argv=plan.args)

    assert ("/p", "/m", "/p/kv.sock", 7005) == (
        chosen.folder,
        chosen.models,
        chosen.kv_store,
        chosen.metrics_port,
    )
    assert ("engine", "/s/engine") == (chosen.engine.user, chosen.engine.password_file)
    assert "/s/host" == plan.env["HEADRACE_HOST_NATS_PASSWORD_FILE"]
    assert plan.stop_s > 12.0 == chosen.drain_s


@pytest.mark.parametrize(("fake", "warm"), [(False, "vllm"), (True, "plain")])
def test_what_engines_need_is_imported_before_any_is_wanted(fake, warm):
    plan = host_plan(
        UpOptions(fake=fake),
        folder=Path("/p"),
        models=Path("/m"),
        secrets=SECRETS,
        metrics_port=1,
    )

    assert warm == plan.args[plan.args.index("--warm") + 1]


def test_prometheus_is_told_of_every_process_with_its_name():
    options = UpOptions(gateways=2, fake=True, metrics_port=7000)
    plans = [
        *gateway_plans(options, secrets=SECRETS, metrics_ports=[7001, 7002]),
        host_plan(
            options, folder=Path("/p"), models=Path("/m"), secrets=SECRETS, metrics_port=7003
        ),
        operator_plan(options, secrets=SECRETS, metrics_port=7004),
        *tracer_plans(options, secrets=SECRETS),
    ]
    text = scrape_config(plans, rules=Path("/a folder/rules"), engines=Path("/p/engines.json"))
    config = yaml.safe_load(text)
    *static, engines = config["scrape_configs"]

    assert ["/a folder/rules/*.yml"] == config["rule_files"]
    targets = {
        (job["job_name"], target, group["labels"]["process"])
        for job in static
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert {
        ("headrace-gateway", "127.0.0.1:7001", "gateway-0"),
        ("headrace-gateway", "127.0.0.1:7002", "gateway-1"),
        ("headrace-host", "127.0.0.1:7003", "host"),
        ("headrace-operator", "127.0.0.1:7004", "operator"),
        ("headrace-tracer", "127.0.0.1:7000", "tracer"),
    } == targets
    assert ["/p/engines.json"] == engines["file_sd_configs"][0]["files"]
