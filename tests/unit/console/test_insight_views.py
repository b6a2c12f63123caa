"""What `headrace top` and `headrace blame` draw, from values."""

from __future__ import annotations

import pytest

from services.console.insight.blame_table import table
from services.console.insight.found import Found
from services.console.insight.pulse import MAX_REQUESTS, Pulse
from services.console.insight.top_view import picture
from shared.blame import LedgerWindow, blame
from shared.ids import EngineId, RequestId, ServiceName, TracerId
from shared.messages import (
    EngineHeartbeat,
    EngineState,
    GatewayHeartbeat,
    Outcome,
    StageBatch,
    StepSummary,
    TracerHeartbeat,
)
from tests.support.requests_seen import ENGINE, GATEWAY, SERVICE, blocked, ledger


def beat(engine: EngineId = ENGINE, name: str = "engine-0", number: int = 1) -> EngineHeartbeat:
    return EngineHeartbeat(
        engine=engine,
        service=SERVICE,
        beat=number,
        state=EngineState.READY,
        backend="vllm",
        name=name,
        running=3,
        waiting=1,
    )


def steps(**fields: object) -> StageBatch:
    summary = StepSummary(**fields)  # type: ignore[arg-type]
    return StageBatch(service=SERVICE, engine=ENGINE, at=0.0, unix_s=0.0, moves=[], steps=summary)


def request(number: int, service: ServiceName = SERVICE, **fields: object) -> Found:
    return Found(service, GATEWAY, ledger(number, **fields))  # type: ignore[arg-type]


def busy() -> Pulse:
    pulse = Pulse(began=0.0)
    pulse.hear_engine(beat(), 19.5)
    pulse.hear_engine(beat(EngineId("e9"), "engine-1"), 14.0)
    pulse.hear_gateway(
        GatewayHeartbeat(
            gateway=GATEWAY,
            beat=1,
            open_streams=4,
            queued=2,
            url="http://127.0.0.1:8000",
            engines=1,
        ),
        19.8,
    )
    pulse.hear_tracer(
        TracerHeartbeat(tracer=TracerId("t1"), beat=1, ledgers=7, kept=3, exported=2, level=1), 19.9
    )
    pulse.hear_steps(
        steps(
            steps=50,
            busy_us=1_000_000,
            wait_us=250_000,
            decode_tokens=200,
            prefill_tokens=70,
            longest_us=95_000,
            longest_by=RequestId("c7"),
        ),
        15.0,
    )
    pulse.hear_steps(
        steps(steps=50, busy_us=1_000_000, decode_tokens=200, longest_us=20_000, preemptions=2),
        16.0,
    )
    for number in range(20):
        pulse.hear_request(request(number, ttft_us=20_000), 12.0 + number / 4)
    pulse.hear_request(request(40, outcome=Outcome.REFUSED), 18.0)
    return pulse


def test_the_picture_of_a_busy_platform():
    assert picture(busy().now(20.0), "headrace top").split("\n") == [
        "headrace top  last 10 s",
        "",
        "SERVICE               REQ/S   RUN  WAIT  FIRST p50      p99  TOKEN p50      p99  WHOLE p50      p99  NOT FINISHED",
        "tiny                    2.1     3     1      20 ms    20 ms      11 ms    11 ms     100 ms   100 ms  1 refused",
        "  decode 80%, prefill 20%",
        "",
        "ENGINE              SERVICE         STATE         RUN  WAIT  STEPS/S  BATCH   TOK/S  PROMPT/S  HELD UP   LONGEST  BY, MODE",
        "engine-0            tiny            ready           3     1     10.0      4      40         7      12%     95 ms  c7, 2 preempted",
        "engine-1            tiny            silent 6 s      3     1      0.0      0       0         0       0%         -",
        "",
        "GATEWAY             URL                              STREAMS  QUEUED  ENGINES",
        "g0000000000000001   http://127.0.0.1:8000                  4       2        1",
        "",
        "TRACER              METRICS                               SEEN    KEPT  EXPORTED  DROPPED",
        "t1                                                           7       3         2        0  fewer traces",
    ]


def test_ten_seconds_later_all_of_it_is_forgotten_but_who_fell_silent():
    later = busy().now(31.0)

    assert ["tiny"] == [one.service for one in later.services]
    assert (0.0, {}, []) == (
        later.services[0].per_s,
        later.services[0].outcomes,
        later.services[0].wall_us,
    )
    assert [0.0, 0.0] == [stepping.steps_per_s for _, stepping in later.engines]
    assert all(one.is_silent for one, _ in later.engines)
    assert [] == busy().now(80.0).engines


def test_nobody_is_a_picture_too():
    lines = picture(Pulse(0.0).now(5.0), "headrace top").split("\n")

    assert ["  no service was heard of", "  none was heard", "  none was heard"] == [
        line for line in lines if "was heard" in line
    ]


def test_rates_stay_exact_beyond_what_is_kept():
    pulse = Pulse(began=0.0)
    one = request(1)
    for number in range(MAX_REQUESTS + 1000):
        pulse.hear_request(one, 10.0 + number / 3000)

    now = pulse.now(18.0)

    assert MAX_REQUESTS == len(now.services[0].wall_us)
    assert (MAX_REQUESTS + 1000) / 10 == pytest.approx(now.services[0].per_s)


def test_a_service_without_engines_is_shown_by_its_requests():
    pulse = Pulse(began=0.0)
    pulse.hear_request(request(1, ServiceName("unknown"), outcome=Outcome.INVALID), 5.0)

    assert [("unknown", {Outcome.INVALID: 1})] == [
        (s.service, s.outcomes) for s in pulse.now(6.0).services
    ]


def test_the_blame_table_has_a_column_for_each_quantile_and_the_words_below():
    window = LedgerWindow()
    for n in range(97):
        window.add(ledger(n, parts={"queue": 1, "prefill": 20, "decode": 79 + n / 1000}))
    for n in range(100, 103):
        parts = {"queue": 1, "prefill": 20, "decode": 79, "decode_wait": 2300}
        window.add(ledger(n, parts=parts, blocked_by=[blocked(7, 2300)]))
    window.add(ledger(200, outcome=Outcome.REFUSED, parts={"admit": 10}))

    assert table(blame(window), "tiny, last 5 min", {}).split("\n") == [
        "tiny, last 5 min: 101 requests, 1 of them not finished",
        "",
        "                    p50              p95              p99           of p99 − p50",
        "wall             100 ms           100 ms            2.4 s",
        "first token       21 ms            21 ms            21 ms",
        "mean around      100 ms  of 11    100 ms   of 5     1.8 s   of 4",
        "queue            1.0 ms     1%    1.0 ms     1%    1.0 ms   0.1%",
        "prefill           20 ms    20%     20 ms    20%     20 ms     1%",
        "decode            79 ms    79%     79 ms    79%     79 ms     4%",
        "decode_wait           -     0%         -     0%     1.7 s    95%            100%",
        "no compute                  1%               1%              95%",
        "",
        "p99 is 2.4 s, p50 100 ms; 100% of the difference is decode_wait: 3 of 4 slow requests were held up",
        "by prefills of others.",
        "Most of that by chatcmpl-000000000000000000000007 with a prompt of 100 tokens: 6.9 s in all.",
        "The usual request is 79% decode and 20% prefill; 41% of all time is neither prefill nor decode.",
        "To the first token p99 is 21 ms, p50 21 ms.",
        "1 request did not finish (1 refused); 100% of their time was admit, 10 ms each.",
    ]
