"""What is wrong with a file is said with its line and column and what to write, all of it at once; and no text breaks the reader."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.errors import UserError
from shared.spec.yaml_source import MAX_DEPTH, documents, read_services

HEAD = "apiVersion: llmplatform.io/v1\nkind: LLMService\nmetadata: {name: chat}\nspec:\n  modelRef: {name: smollm2}\n"


def refusal(text: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        read_services(text, "chat.yaml")
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "  scalingPolicy: {minReplicsa: 2}\n",
            "chat.yaml:6:19: spec.scalingPolicy.minReplicsa: there is no such key; did you mean minReplicas?",
        ),
        (
            "  resourceLimits:\n    memory: 32Gx\n",
            "chat.yaml:7:5: spec.resourceLimits.memory: '32Gx' does not fit; write a size of at least 67108864 bytes, as 32Gi",
        ),
        (
            "  scalingPolicy: {min_replicas: 3, maxReplicas: 2}\n",
            "chat.yaml:6:36: spec.scalingPolicy.maxReplicas: 2 is less than minReplicas, 3; raise it, or lower minReplicas",
        ),
        (
            "  scalingPolicy: {minReplicas: 1, min_replica: 2}\n",
            "chat.yaml:6:35: spec.scalingPolicy.min_replica: stands there as minReplicas already; keep one",
        ),
        (
            "  scalingPolicy: {minReplicas: 1, minReplicas: 2}\n",
            "chat.yaml:6:35: 'minReplicas' stands there twice; keep one",
        ),
        (
            "  slo: {latency: [{threshold: P99 < 2s}, {threshold: soon}]}\n",
            "chat.yaml:6:43: spec.slo.latency[1].threshold: 'soon' does not fit; write a quantile and a time, as P99 < 2s",
        ),
        (
            "  tensorParallelSync: gloo\n",
            "chat.yaml:6:3: spec.tensorParallelSync: 'gloo' does not fit; write one of auto, nccl, custom",
        ),
        (
            "  samplingConfig: {temperature: 3}\n",
            "chat.yaml:6:20: spec.samplingConfig.temperature: 3 does not fit; write a number from 0 to 2, as 0.2",
        ),
        (
            "  defragPolicy: {schedule: 61 3 * * *}\n",
            "chat.yaml:6:18: spec.defragPolicy.schedule: '61 3 * * *' does not fit; write a cron schedule of five fields, as 0 3 * * *",
        ),
        (
            "  rollout: {steps: [50%, 10%]}\n",
            "chat.yaml:6:13: spec.rollout.steps: do not rise; write them in order, each once",
        ),
        (
            "  engine: {backend: fake, quantization: awq}\n",
            "chat.yaml:6:27: spec.engine.quantization: is for vLLM, and the backend is fake; leave it out",
        ),
        ("  engine: [}\n", "chat.yaml:6:12: is no YAML: expected the node content, but found '}'"),
    ],
)
def test_a_mistake_is_shown_where_it_stands(body: str, said: str):
    assert refusal(HEAD + body) == [said]


def test_all_mistakes_are_told_at_once():
    assert len(refusal(HEAD + "  zone: a b\n  priority: high\n  syncStrategy: yes\n")) == 3


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "there is no document"),
        ("just words", "is no table of keys and values"),
        ("kind: LLMService", "metadata.name: is missing"),
        (HEAD.replace("v1", "v9"), "write apiVersion: llmplatform.io/v1"),
        (HEAD.replace("chat", "a.b c"), "metadata.name: 'a.b c' does not fit"),
        (HEAD + "---\n" + HEAD, "'chat' is declared twice"),
        (HEAD.replace("smollm2}", "smollm2, adapters: [x]}"), "LoRA adapters cannot be served yet"),
        (HEAD + "  <<: {}\n", "merge keys (<<) are not taken"),
        ("a: !!python/object/apply:os.system [ls]", "there is no such key"),
    ],
)
def test_what_is_no_service_is_refused(text: str, part: str):
    assert any(part in line for line in refusal(text)), refusal(text)


def test_aliases_that_grow_are_refused_soon():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    begin_s = time.process_time()
    assert "values" in refusal("\n".join(levels))[0]
    assert time.process_time() - begin_s < 10


def test_an_alias_of_itself_is_refused():
    assert "nested deeper" in refusal("a: &a [*a]")[0]


@pytest.mark.parametrize(
    "text", ["[" * 5000, "{a: " * 500, "- " * 3000, "a:\n" + " " * 10 + "- b\n" * 3]
)
def test_deep_texts_are_refused(text: str):
    refusal(text)


def test_depth_is_bounded():
    assert refusal("a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


TOKENS = st.sampled_from(
    [
        "a",
        "spec",
        ":",
        ": ",
        "- ",
        "\n",
        "  ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "&a ",
        "*a",
        "!!int ",
        "|",
        ">",
        "'",
        '"',
        "#",
        "---\n",
        "%",
        "1e999",
        "0x",
        "2026-01-01",
        "\t",
        "\0",
        "é",
        "~",
        "? ",
        "<<: ",
        "1_000",
        "0o9",
        ".nan",
        ".inf",
        "-.inf",
        "1:30",
    ]
)


@given(st.lists(TOKENS, max_size=30).map("".join) | st.text(max_size=200))
@example("a: 1e999999999")
@example("? [a]\n: b")
@example("a: 9999-99-99")
@example("a: !!timestamp x")
@example("a: !!binary é")
def test_any_text_is_documents_or_a_user_error(text: str):
    try:
        found = documents(text, "f")
    except UserError as error:
        said = str(error)
    else:
        said = "f:"
        assert all(source.document is not None for source in found)
    assert said.startswith("f:")


@given(st.lists(TOKENS, max_size=12).map("".join))
def test_any_body_is_a_service_or_a_user_error(text: str):
    said = "read"
    try:
        read_services(HEAD + "  " + text, "f")
    except UserError as error:
        said = str(error)
    assert said
