"""Prefix warmth over a real bus: a person's follow-up questions go to the engine that knows the conversation, and `trace` says so."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.platform import ROOT, Platform, clean_environment

ENGINES = 3
TURNS = 3
START_S = 90.0


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    options = ("--fake-engine", "--service", "tiny", "--engines", str(ENGINES))
    running = Platform(tmp_path / "home", *options, "--engine-arg", "fake-caches-prefixes=true")
    running.start(timeout_s=START_S)
    yield running
    running.kill()


def ask(platform: Platform, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {"model": "tiny", "messages": messages, "max_tokens": 30, "temperature": 0}
    answer = httpx.post(f"{platform.url}/v1/chat/completions", json=body, timeout=30)
    assert 200 == answer.status_code, answer.text
    found: dict[str, Any] = answer.json()
    return found


def trace(platform: Platform, request: str, *options: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "services.console", "trace", request, *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=clean_environment(platform.home),
        timeout=60,
        check=True,
    )
    return result.stdout


def test_follow_up_questions_find_their_conversation(platform: Platform):
    messages = [{"role": "user", "content": "What do rivers do where the land is flat? " * 60}]
    answers = []
    for _ in range(TURNS):
        answers.append(ask(platform, messages))
        said = answers[-1]["choices"][0]["message"]["content"]
        messages += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": "And then? " * 20},
        ]
        time.sleep(0.3)  # news leave each 0.1 s

    told = [
        json.loads(trace(platform, answer["id"], "--json"))["request"] for answer in answers[1:]
    ]
    words = trace(platform, answers[-1]["id"])

    assert 1 == len({request["engine"] for request in told})
    for answer, request in zip(answers[1:], told, strict=True):
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0.6 * usage["prompt_tokens"]
        assert abs(request["expected_cached_tokens"] - cached) < 100
    # In the first seconds it may also be the engine that has been there for longer.
    assert "tokens expected there, " in words
