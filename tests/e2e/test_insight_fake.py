"""Why was this request slow? Asked of a whole platform with the fake engine: a long prompt holds up a stream, and is named for it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.platform import Platform, clean_environment

START_S = 90.0
PREFILL_TOKENS_PER_S = 4_000
"""Slow enough that a long prompt is felt: a chunk of 2,048 tokens takes half a second."""
LONG_WORDS = 6_000


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    speed = f"fake-prefill-tokens-per-s={PREFILL_TOKENS_PER_S}"
    running = Platform(
        tmp_path / "home", "--fake-engine", "--service", "tiny", "--engine-arg", speed
    )
    running.start(timeout_s=START_S)
    yield running
    running.kill()


def command(home: Path, *words: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "services.console", *words],
        capture_output=True,
        text=True,
        env=clean_environment(home),
        timeout=60,
        check=False,
    )
    assert 0 == result.returncode, result.stdout + result.stderr
    return result.stdout


def ask(platform: Platform, words: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": words}], **fields}
    answer = httpx.post(f"{platform.url}/v1/chat/completions", json=body, timeout=60)
    assert 200 == answer.status_code, answer.text
    found: dict[str, Any] = answer.json()
    return found


def stalled_and_blocker(platform: Platform) -> tuple[str, str]:
    """Let a long prompt come while an answer is generated; return both ids."""
    answers: list[dict[str, Any]] = []
    stream = threading.Thread(
        target=lambda: answers.append(ask(platform, "hello", max_tokens=300, ignore_eos=True))
    )
    stream.start()
    time.sleep(0.5)
    blocker = ask(platform, "word " * LONG_WORDS, max_tokens=2)
    stream.join(60)
    return answers[0]["id"], blocker["id"]


def test_a_long_prompt_that_held_up_a_stream_is_found_by_each_command(platform):
    stalled, blocker = stalled_and_blocker(platform)
    time.sleep(0.5)  # ledgers leave each 0.1 s

    with ThreadPoolExecutor() as pool:  # each is a process of its own
        trace, lines, words, picture = pool.map(
            lambda line: command(platform.home, *line.split()),
            (
                f"trace {stalled} --token 300 --json",
                "logs tiny --stage decode_wait --json",
                "blame tiny",
                "top --once",
            ),
        )
    document = json.loads(trace)
    request = document["request"]

    assert request["wall_ms"] == pytest.approx(sum(request["stages_ms"].values()), rel=0.01)
    assert request["stages_ms"]["decode_wait"] > 800
    assert blocker in request["blocked_by_ms"]
    assert any(
        said.startswith(f"Its decoding was held up by the prefill of {blocker} for ")
        for said in document["blame"]
    )
    assert [request["last_step"]] == [one["step"] for one in document["token"]]
    assert stalled in [json.loads(line)["request"] for line in lines.splitlines()]
    assert "decode_wait" in words
    assert "tiny" in picture
    assert "tiny-0" in picture
