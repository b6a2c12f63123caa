"""Engines that say `resumes` go on behind what another one said, and say what it would have said: no text twice, none lost."""

from __future__ import annotations

import pytest

from services.engine.ports import Job, Piece, RefusedError
from shared.messages import Finish, Prior, RefuseReason, TextPrompt, TokenLogprob
from tests.support.engine_rig import EngineRig, is_last, job_of

RIVERS = TextPrompt(text="The three longest rivers of the world are")
EMOJI = TextPrompt(text="Repeat: 🦊🐻🐼 你好世界 🦊🐻🐼 你好世界 🦊🐻🐼 你好世界 🦊🐻🐼")
"""Makes a small model say characters of several tokens."""


def behind(job: Job, pieces: list[Piece], lost_at: int) -> tuple[Job, list[Piece]]:
    """Return the job that goes on after `lost_at` pieces, and the pieces that came before."""
    shown = pieces[:lost_at]
    over = {piece.choice for piece in shown if piece.finish is not None}
    prior = tuple(
        Prior(
            choice=choice,
            token_ids=[t for piece in shown if piece.choice == choice for t in piece.token_ids],
            chars=sum(len(piece.text) for piece in shown if piece.choice == choice),
        )
        for choice in range(job.sampling.n)
        if choice not in over
    )
    later = job_of(job.prompt)
    return Job(
        key=later.key,
        request=later.request,
        prompt=job.prompt,
        sampling=job.sampling,
        priority=job.priority,
        trace={},
        prior=prior,
    ), shown


def content(pieces: list[Piece], choice: int) -> tuple[object, ...]:
    """Return text, tokens and ends of a choice."""
    own = [piece for piece in pieces if piece.choice == choice]
    return (
        "".join(piece.text for piece in own),
        [token for piece in own for token in piece.token_ids],
        [piece.finish for piece in own if piece.finish is not None],
        [piece.extra.stop_reason for piece in own if piece.extra and piece.extra.stop_reason],
    )


async def check_seams(rig: EngineRig, job: Job, *, every: int) -> None:
    """Lose the answer at many places; each time both parts together must be the whole."""
    whole = await rig.answer(job)
    for lost_at in range(1, len(whole) - 1, every):
        again, shown = behind(job, whole, lost_at)
        rest = await rig.answer(again)

        assert [False] * (len(rest) - 1) + [True] == [is_last(piece) for piece in rest]
        for choice in range(job.sampling.n):
            assert content(whole, choice) == content([*shown, *rest], choice), lost_at
        usage, before = rest[-1].extra, sum(len(piece.token_ids) for piece in shown)
        assert usage is not None
        assert usage.usage is not None
        assert whole[-1].extra is not None
        assert whole[-1].extra.usage is not None
        assert whole[-1].extra.usage.completion_tokens == before + usage.usage.completion_tokens
        assert whole[-1].extra.usage.prompt_tokens == usage.usage.prompt_tokens


@pytest.mark.parametrize(
    "sampling",
    [
        {"max_tokens": 24},
        {"max_tokens": 24, "ignore_eos": True, "repetition_penalty": 1.3},
        {"max_tokens": 24, "min_tokens": 20, "logit_bias": {5: 1.5}},
    ],
    ids=["plain", "repetition", "bias"],
)
def test_the_rest_is_what_would_have_come(resuming_rig: EngineRig, sampling):
    job = job_of(RIVERS, temperature=0.0, **sampling)
    resuming_rig.run(check_seams(resuming_rig, job, every=10))


def test_half_a_character_is_neither_lost_nor_said_twice(resuming_rig: EngineRig):
    job = job_of(EMOJI, temperature=0.0, max_tokens=14, ignore_eos=True)
    resuming_rig.run(check_seams(resuming_rig, job, every=1))


def test_the_beginning_of_a_stop_string_is_kept_back_over_the_seam(resuming_rig: EngineRig):
    async def scenario():
        plain = await resuming_rig.text(RIVERS, temperature=0.0, max_tokens=24)
        stop = plain[len(plain) // 2 :][:8]
        job = job_of(RIVERS, temperature=0.0, max_tokens=24, stop=(stop,))
        assert content(await resuming_rig.answer(job), 0)[2] == [Finish.STOP]

        again = job_of(RIVERS, temperature=0.0, max_tokens=24, stop=(stop,))
        await check_seams(resuming_rig, again, every=3)

    resuming_rig.run(scenario())


def test_each_choice_goes_on_by_itself(resuming_rig: EngineRig):
    job = job_of(RIVERS, temperature=0.0, max_tokens=10, n=3)
    resuming_rig.run(check_seams(resuming_rig, job, every=4))


def test_log_probabilities_go_on(resuming_rig: EngineRig):
    async def scenario():
        job = job_of(RIVERS, temperature=0.0, max_tokens=12, logprobs=2)
        whole = await resuming_rig.answer(job)
        again, shown = behind(job, whole, 6)

        both = [*shown, *await resuming_rig.answer(again)]

        wanted, got = logprobs(whole), logprobs(both)
        assert [entry.token_bytes for entry in wanted] == [entry.token_bytes for entry in got]
        for one, other in zip(wanted, got, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)

    resuming_rig.run(scenario())


def logprobs(pieces: list[Piece]) -> list[TokenLogprob]:
    extras = [piece.extra for piece in pieces if piece.extra is not None]
    return [entry for extra in extras for entry in extra.logprobs or ()]


def test_prior_tokens_of_another_model_are_refused(resuming_rig: EngineRig):
    async def scenario():
        job = job_of(RIVERS, temperature=0.0, max_tokens=12)
        again, _ = behind(job, [Piece(0, "x", [10_000_000])], 1)
        with pytest.raises(RefusedError) as refusal:
            await resuming_rig.engine.submit(again)
        assert refusal.value.reason is RefuseReason.INVALID

    resuming_rig.run(scenario())
