"""What needs more than its tokens to go on (grammars, tools, seeds, penalties) is begun again elsewhere: the client sees no seam.

The engine's part and the gateway's together: an answer as it is undisturbed, and the same one begun again in other company, of which the
gateway leaves out what the client has, wherever the first was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from services.engine.ports import Job, Piece
from services.gateway.call import Call
from services.gateway.continuation import Replay, Way, is_exact, ways_of
from services.gateway.said import Said
from shared.ids import StreamNo
from shared.messages import ChatPrompt, Delta, DeltaExtra, Prompt, TextPrompt
from tests.support.engine_rig import EngineRig, job_of

RIVERS = TextPrompt(text="The three longest rivers of the world are")
SCHEMA = b"""{"type": "object", "required": ["name", "note"], "additionalProperties": false,
"properties": {"name": {"enum": ["Ada", "Bob"]}, "note": {"type": "string", "maxLength": 12}}}"""
TOOL = ChatPrompt(
    messages_json=b'[{"role": "user", "content": "Who?"}]',
    tools_json=b'[{"type": "function", "function": {"name": "f", "parameters": %s}}]' % SCHEMA,
    tool_choice="function:f",
)
PENALTIES = {"presence_penalty": 0.8, "frequency_penalty": 0.4}
SAMPLED = {"temperature": 1.0, "seed": 11}

KINDS: dict[str, tuple[Prompt, dict]] = {
    "a schema": (RIVERS, {"temperature": 0.0, "json_schema": SCHEMA, "max_tokens": 40}),
    "a schema and a seed": (RIVERS, SAMPLED | {"json_schema": SCHEMA, "max_tokens": 40}),
    "any JSON": (RIVERS, {"temperature": 0.0, "json_object": True}),
    "a tool": (TOOL, {"temperature": 0.0, "max_tokens": 40}),
    "a tool and a seed": (TOOL, SAMPLED | {"max_tokens": 40}),
    "a seed": (RIVERS, SAMPLED),
    "a seed, choices and log probabilities": (RIVERS, SAMPLED | {"n": 2, "logprobs": 2}),
    "penalties": (RIVERS, PENALTIES | {"temperature": 0.0}),
    "penalties and a seed": (RIVERS, PENALTIES | SAMPLED | {"top_p": 0.9, "top_k": 50}),
}


def asked(kind: str) -> Job:
    prompt, sampling = KINDS[kind]
    return job_of(prompt, **({"max_tokens": 16} | sampling))


def deltas_of(pieces: list[Piece]) -> list[Delta]:
    return [
        Delta(
            StreamNo(1), seq, piece.choice, piece.text, piece.token_ids, piece.finish, piece.extra
        )
        for seq, piece in enumerate(pieces)
    ]


def client_has(deltas: list[Delta]) -> dict[int, tuple[object, ...]]:
    """Return what a client has by choice: text, tokens, arguments of calls, log probabilities' bytes, ends."""
    told: dict[int, tuple[object, ...]] = {}
    for choice in {delta.choice for delta in deltas}:
        own = [delta for delta in deltas if delta.choice == choice]
        extras = [delta.extra or DeltaExtra() for delta in own]
        told[choice] = (
            "".join(delta.text for delta in own),
            [token for delta in own for token in delta.token_ids],
            "".join(call.arguments for extra in extras for call in extra.tool_calls or ()),
            [call.name for extra in extras for call in extra.tool_calls or () if call.name],
            [entry.token_bytes for extra in extras for entry in extra.logprobs or ()],
            [delta.finish for delta in own if delta.finish is not None],
        )
    return told


def seen_by_client(whole: list[Delta], again: list[Delta], lost_at: int, n: int) -> list[Delta]:
    """Return what comes to the client if the first answer is lost after so many deltas."""
    said = [Said() for _ in range(n)]
    for delta in whole[:lost_at]:
        said[delta.choice].add(delta)
    replay = Replay(said)
    news = [replay.news(delta) for delta in again]
    assert replay.is_caught_up
    return [*whole[:lost_at], *(delta for delta in news if delta is not None)]


async def answered(rig: EngineRig, kinds: Iterable[str]) -> dict[str, list[Delta]]:
    """Return the answers to requests that run at the same time."""
    jobs = {kind: asked(kind) for kind in kinds}
    answers = await asyncio.gather(*map(rig.answer, jobs.values()))
    return dict(zip(jobs, map(deltas_of, answers), strict=True))


def test_an_answer_that_is_begun_again_has_no_seam(resuming_rig: EngineRig):
    async def scenario() -> None:
        whole = await answered(resuming_rig, KINDS)
        again = await answered(resuming_rig, list(KINDS)[::2])
        again |= await answered(resuming_rig, list(KINDS)[1::2])

        for kind, deltas in whole.items():
            n = asked(kind).sampling.n
            for lost_at in range(1, len(deltas) - 1):
                seen = seen_by_client(deltas, again[kind], lost_at, n)
                assert client_has(deltas) == client_has(seen), (kind, lost_at)

    resuming_rig.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_the_gateway_has_it_begun_again_and_says_that_it_is_exact(kind):
    job = asked(kind)
    call = Call(
        kind="chat",
        model="m",
        prompts=(job.prompt,),
        sampling=job.sampling,
        has_own_seed="seed" in KINDS[kind][1],
    )
    said = Said()
    said.add(Delta(StreamNo(1), 0, 0, "x", [7], None, None))

    ways = ways_of(call, job.prompt, [said])

    assert Way.REPLAY is ways[0]
    assert is_exact(call, Way.REPLAY)
    assert not any(is_exact(call, way) for way in ways[1:])
