"""What `apply` takes from files, and how services are shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from services.console import cli
from services.console.declare import commands, files, tables
from services.console.settings import read_settings
from shared.declared import Service
from shared.errors import UserError
from shared.messages import (
    DesiredRecord,
    ReplicaPhase,
    ReplicaStatus,
    ServicePhase,
    ServiceRecord,
    StatusRecord,
)
from shared.spec.model import (
    CustomMetric,
    LatencyObjective,
    ObservabilitySpec,
    ShareObjective,
    Slo,
    Threshold,
)
from shared.spec.revision import revision
from shared.spec.writing import to_document, to_yaml
from tests.support.prometheus import binary, promtool
from tests.support.specs import service

NOW_US = 1_790_000_000_000_000
STATUS = StatusRecord(
    service="chat",
    phase=ServicePhase.DEGRADED,
    reason="chat-1 on node-1, ended 2 times: exit code 1\x1b[2J",
    generation=3,
    wanted=2,
    ready=1,
    updated=1,
    since_us=NOW_US - 180_000_000,
    replicas=[
        ReplicaStatus(
            name="chat-0", host="node-1", revision="r1", phase=ReplicaPhase.RUNNING, serves=True
        ),
        ReplicaStatus(
            name="chat-1",
            host="node-1",
            revision="r1",
            phase=ReplicaPhase.STARTING,
            step="load",
            restarts=2,
        ),
    ],
)


def declared(status: StatusRecord | None = STATUS, **parts: object) -> Service:
    spec = service(**parts)
    record = ServiceRecord(
        service=spec.name,
        spec=to_document(spec),
        generation=3,
        revision=revision(spec),
        by="ops",
        source="chat.yaml",
        applied_us=NOW_US - 7_200_000_000,
    )
    desired = DesiredRecord(service=spec.name, replicas=2, by="console")
    return Service(record=record, desired=desired, status=status)


def test_a_line_says_how_a_service_is_and_the_next_one_why():
    lines = tables.table([declared()], now_us=NOW_US, wide=False).splitlines()
    assert lines[1].split() == ["chat", "Degraded", "1/2", "1", "3", "3", "min"]
    assert lines[2] == "  chat-1 on node-1, ended 2 times: exit code 1\\x1b[2J"


def test_a_wide_line_says_what_it_is_made_of():
    row = tables.table([declared()], now_us=NOW_US, wide=True).splitlines()[1]
    assert row.split()[-6:] == ["fake", "fake", "1", "to", "1", "node-1"]


def test_a_service_that_no_operator_has_seen_is_pending():
    assert "Pending" in tables.table([declared(None)], now_us=NOW_US, wide=True)
    assert "no operator has looked at it yet" in tables.description(declared(None), now_us=NOW_US)


def test_no_service_is_said_to_be_none():
    assert "none is declared" in tables.table([], now_us=NOW_US, wide=False)


def test_a_description_has_state_replicas_spec_and_what_nobody_acts_on():
    slo = Slo(availability=ShareObjective(target=0.999))
    text = tables.description(declared(slo=slo), now_us=NOW_US)
    for part in (
        "Phase:       Degraded for 3 min",
        "1 serve of 2 wanted",
        "Scaled:      to 2 by console",
        "2 h ago by ops from chat.yaml",
        "chat-1",
        "load",
        "modelRef:",
        "# kept, and nothing acts on it yet: slo",
    ):
        assert part in text
    assert "\x1b" not in text


def test_a_record_of_a_later_version_is_shown_all_the_same():
    record = ServiceRecord(
        service="chat", spec={"apiVersion": "llmplatform.io/v9"}, generation=1, revision="r"
    )
    one = Service(record=record)
    assert "?" in tables.table([one], now_us=NOW_US, wide=True)
    assert "cannot be read" in tables.description(one, now_us=NOW_US)


def write(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def test_files_and_folders_are_read_whole(tmp_path):
    write(tmp_path, "b.yaml", to_yaml(service("b")))
    write(tmp_path, "a.yml", to_yaml(service("a")) + "---\n" + to_yaml(service("c")))
    write(tmp_path, "readme.txt", "no service")
    assert [one.spec.name for one in files.read([str(tmp_path)])] == ["a", "c", "b"]


def test_all_problems_of_all_files_are_told_and_nothing_is_read(tmp_path):
    write(tmp_path, "a.yaml", to_yaml(service("a")).replace("backend", "backnd"))
    write(tmp_path, "b.yaml", to_yaml(service("b")))
    write(tmp_path, "c.yaml", to_yaml(service("b")) + "zone: a\n")
    write(tmp_path, "d.yaml", to_yaml(service("b")))
    with pytest.raises(UserError) as caught:
        files.read([str(tmp_path)])
    said = str(caught.value)
    assert "a.yaml:9:5: spec.engine.backnd: there is no such key; did you mean backend?" in said
    assert re.search(r"c\.yaml:\d+:1: zone: there is no such key", said)
    assert "'b' is declared in" in said


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("absent.yaml", None, "cannot read"),
        ("binary.yaml", b"\xff\xfe\x00", "is no text in UTF-8"),
        ("empty.yaml", b"", "there is no document"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said):
        files.read([str(tmp_path / name)])


def test_a_folder_without_files_is_named(tmp_path):
    with pytest.raises(UserError, match="no YAML file"):
        files.read([str(tmp_path)])


def with_metric(expression: str) -> list[files.Found]:
    metric = CustomMetric(name="contracts_total", expression=expression)
    spec = service(observability=ObservabilitySpec(custom_metrics=(metric,)))
    return [files.Found(spec, "chat.yaml")]


def test_expressions_are_checked_as_promql():
    program = str(binary("promtool"))
    assert files.check_expressions(with_metric("sum(rate(x_total[1m]))"), program) == ""
    with pytest.raises(UserError, match=r"customMetrics\[0\]\.expression"):
        files.check_expressions(with_metric("sum(rate(x_total[1m])"), program)


def test_expressions_that_cannot_be_checked_are_remarked_where_there_are_any():
    assert "not checked" in files.check_expressions(with_metric("x"), None)
    assert files.check_expressions([files.Found(service(), "f")], None) == ""


def test_promises_that_no_histogram_can_tell_are_refused_before_anything_is_applied():
    objective = LatencyObjective(threshold=Threshold(quantile=0.99, limit_s=1e-6))
    found = [files.Found(service(slo=Slo(latency=(objective,))), "chat.yaml")]
    with pytest.raises(UserError, match=r"chat\.yaml: no objective of latency can be measured"):
        files.check_expressions(found, None)


def test_rules_are_made_of_files_and_prometheus_takes_them(tmp_path, capsys):
    spec = service(
        observability=with_metric("sum(rate(x_total[1m]))")[0].spec.observability,
        slo=Slo(
            availability=ShareObjective(target=0.999),
            latency=(
                LatencyObjective(threshold=Threshold(quantile=0.95, limit_s=0.5), metric="ttft"),
                LatencyObjective(
                    threshold=Threshold(quantile=0.99, limit_s=2.0), exclusions=("first_token",)
                ),
            ),
        ),
    )
    file = write(tmp_path, "a.yaml", to_yaml(spec) + "---\n" + to_yaml(service("plain")))
    assert run(["rules", "-f", file]) == 0
    rules = capsys.readouterr().out
    assert "# chat: P99 end_to_end < 2s leaves out first_token" in rules
    assert 'objective: "ttft_p95"' in rules
    assert "contracts_total" in rules
    assert "headrace-plain" not in rules
    write(tmp_path, "rules.yaml", rules)
    assert "SUCCESS" in promtool("check", "rules", tmp_path / "rules.yaml")


def run(words: list[str]) -> int:
    """Run a command as the command line does, but for its logs."""
    return commands.run(cli.parser().parse_args(words), read_settings({}))


def test_the_schema_is_printed(capsys):
    assert run(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "LLMService"


def test_a_broken_file_says_where_before_any_platform_is_asked(tmp_path):
    file = write(tmp_path, "a.yaml", "kind: LLMService\n")
    with pytest.raises(UserError, match=r"a\.yaml:1:1: metadata\.name: is missing"):
        run(["apply", "-f", file])
