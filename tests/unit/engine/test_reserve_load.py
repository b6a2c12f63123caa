"""A mixed load in virtual time: what promises do to short requests and to long ones, beside an order of arrival alone."""

from __future__ import annotations

import random
import statistics

import pytest

from services.engine.adapters.fake_batch import Batch, Task
from services.engine.ports import Piece
from services.engine.settings import FakeSettings
from shared.messages import Finish, Priority

SETTINGS = FakeSettings(
    max_model_len=8192,
    total_blocks=300,
    block_tokens=32,
    max_streams=64,
    prefill_tokens_per_s=4000.0,
    chunk_tokens=1024,
    step_s=0.02,
)
SHORT, LONG, TOKENS = 128, 6000, 32


def choice(tokens: int):
    for number in range(1, tokens + 1):
        yield Piece(0, "x", [1], Finish.LENGTH if number == tokens else None)


def first_tokens(settings: FakeSettings, *, pause_s: float, seed: int) -> dict[bool, list[float]]:
    """Return the times to the first token, of short and of long (true) requests."""
    draw = random.Random(seed)
    batch, now, came, number = Batch(settings), 0.0, 0.0, 0
    asked: dict[str, float] = {}
    times: dict[bool, list[float]] = {False: [], True: []}

    def sink(key: str, _piece: Piece) -> None:
        if key in asked:
            times[key.startswith("long")].append(now - asked.pop(key))

    while number < 300 or batch.has_work:
        while number < 300 and (came <= now or not batch.has_work):
            now = max(now, came)
            is_long = draw.random() < 0.1
            key = f"{'long' if is_long else 'short'} {number}"
            prompt = LONG if is_long else SHORT
            blocks = -(-(prompt + TOKENS) // settings.block_tokens)
            batch.add(
                Task(key, prompt_tokens=prompt, blocks=blocks, choices=[choice(TOKENS)]),
                Priority.DEFAULT,
                now,
            )
            asked[key] = came
            came += draw.expovariate(1 / pause_s)
            number += 1
        now += batch.begin_step(now)
        batch.end_step(sink)
    return times


@pytest.mark.parametrize("seed", range(3))
def test_short_requests_find_blocks_while_long_ones_wait(seed):
    ours = first_tokens(SETTINGS, pause_s=0.3, seed=seed)
    stock_like = first_tokens(
        FakeSettings(**{**_fields(SETTINGS), "overcommit": True}), pause_s=0.3, seed=seed
    )

    def high(times: list[float]) -> float:
        return statistics.quantiles(times, n=20)[-1]

    assert 300 == len(ours[False]) + len(ours[True])
    assert high(ours[False]) < high(stock_like[False]) / 2.3
    assert statistics.fmean(ours[True]) < 1.5 * statistics.fmean(stock_like[True])


def _fields(settings: FakeSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}
