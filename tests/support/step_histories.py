"""Histories of an engine's steps from a source of randomness, and a naive accountant: for each step it looks at each choice of each stream.

The histories have what real schedulers do: chunks and pauses between them, preemptions, choices left out of a step, loads from lower tiers,
drafts, cancels, several choices a stream, and steps that are made before the one before has ended.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from services.engine.stepbook import StepBook
from services.engine.steps.blame import NOTABLE
from services.engine.steps.decode_time import DecodeTime
from services.engine.steps.step import Draft, Prefill, Step
from services.engine.steps.sums import UNDER_WAY_US
from shared.ids import RequestId
from shared.messages import Spent

ORDER = ("decode", "prefill", "decode_wait", "kv_load", "queue")


@dataclass
class Choice:
    """One choice in the history, and what it does in the step under way."""

    ref: str
    prompt_left: int
    tokens_left: int
    state: str = "waiting"
    """waiting, loading, loaded, midway, decoding, resting, over"""
    begun: bool = False
    again_left: int = 0
    computed: int = 0
    made: list[int] = field(default_factory=list)
    """The step of each token."""
    act: str = ""

    @property
    def wait(self) -> str:
        return "decode_wait" if self.begun else "queue"


@dataclass
class Stream:
    """One stream in the history, and what the naive accountant has of it."""

    key: str
    request: RequestId
    received_us: int
    enqueued_us: int
    choices: list[Choice]
    us: Counter[str] = field(default_factory=Counter)
    blocked_by: Counter[RequestId] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    at_us: int = 0

    @property
    def is_over(self) -> bool:
        return all(choice.state == "over" for choice in self.choices)


class History:
    """Draws a history, feeds it to a book, and keeps the naive accounts beside it."""

    def __init__(self, random: Random, book: StepBook) -> None:
        self.random = random
        self.book = book
        self.streams: list[Stream] = []
        self.told: list[tuple[Stream, Spent]] = []
        """Streams that ended, with what the book said at their end."""
        self.number = 0
        self.now_us = 1_000_000
        self.end_us = 0
        self.made_us = 0
        self.last_batch = 0
        self.drafting = random.random() < 0.3
        self._times = DecodeTime()
        self._opened = 0

    def run(self, steps: int) -> None:
        """Make so many steps, with arrivals and departures between them."""
        for _ in range(steps):
            while self.random.random() < 0.4:
                self._arrive()
            self._step()
            for stream in [each for each in self.streams if self.random.random() < 0.05]:
                self.now_us += self.random.randrange(3000)
                self._end(stream)

    def finish(self) -> None:
        """End what still runs."""
        for stream in list(self.streams):
            self.now_us += self.random.randrange(3000)
            self._end(stream)

    # --- arrivals and ends

    def _arrive(self) -> None:
        random, number = self.random, self._opened
        self._opened += 1
        received_us = self.now_us
        self.now_us += random.randrange(2000)
        stream = Stream(
            f"g:{number}",
            RequestId(f"r{number}"),
            received_us,
            self.now_us,
            [
                Choice(f"g:{number}.{index}", random.randint(1, 60), random.randint(1, 12))
                for index in range(random.choice((1, 1, 1, 2, 3)))
            ],
        )
        self.book.open(stream.key, stream.request, received_at=received_us / 1e6)
        for choice in stream.choices:
            self.book.enqueue(stream.key, choice.ref, at=self.now_us / 1e6)
        stream.us["tokenize"] = stream.enqueued_us - received_us
        stream.at_us = stream.enqueued_us
        self.streams.append(stream)

    def _end(self, stream: Stream) -> None:
        """Compare, after the time since the last step has gone where the state of the stream says."""
        spent = self.book.spent(stream.key, until=self.now_us / 1e6, decode_tokens=7)
        assert spent is not None
        left_us = self.now_us - stream.at_us
        if stream.is_over:
            stream.us["output_parse"] += left_us
        elif any(choice.state == "decoding" for choice in stream.choices):
            calm_us = self._times.of(self.last_batch)
            under_way_us = self.now_us - self.end_us
            stuck_us = 0 if calm_us is None else max(0, under_way_us - int(calm_us))
            stuck_us = 0 if under_way_us < UNDER_WAY_US else min(stuck_us, left_us)
            stream.us["decode"] += left_us - stuck_us
            stream.us["decode_wait"] += stuck_us
        else:
            stream.us[first(self._resting_stage(choice) for choice in stream.choices)] += left_us
        self.told.append((stream, spent))
        self.book.close(stream.key, at=self.now_us / 1e6)
        self.streams.remove(stream)

    def _resting_stage(self, choice: Choice) -> str:
        if choice.state == "midway":
            return "decode_wait" if choice.begun else "prefill"
        return {"loading": "kv_load", "over": "queue"}.get(choice.state, choice.wait)

    # --- steps

    def _step(self) -> None:
        random = self.random
        self.number += 1
        begin_us = self.end_us
        if random.random() < 0.4:
            # Asynchronous: made while the step before was under way. Only of those who were there by then.
            made_us = random.randint(self.made_us, max(self.made_us, begin_us))
        else:
            self.now_us += random.randrange(500)
            made_us = self.now_us
        end_us = max(self.now_us, begin_us, made_us) + random.randrange(1, 20_000)
        step = self._decide(made_us, end_us)
        self._account(step, begin_us, min(max(made_us, begin_us), end_us), end_us)
        self.book.feed(step)
        self.made_us, self.end_us, self.now_us = made_us, end_us, end_us
        self._outcome(step)

    def _decide(self, made_us: int, end_us: int) -> Step:
        """Let each choice do something that its state allows."""
        lists: dict[str, list[str]] = {
            name: [] for name in ("preempted", "unscheduled", "loading", "loaded")
        }
        prefills, drafts, decodes = [], [], 0
        for stream in self.streams:
            for choice in stream.choices:
                choice.act = self._act(choice, is_there=stream.enqueued_us <= made_us)
                if choice.act == "chunk":
                    prefills.append(self._chunk(choice))
                elif choice.act == "decode":
                    decodes += 1
                    if self.drafting and self.random.random() < 0.6:
                        drafts.append(Draft(choice.ref, 3, self.random.randint(0, 3)))
                elif choice.act:
                    lists[choice.act].append(choice.ref)
        return Step(
            self.number,
            made_us / 1e6,
            end_us / 1e6,
            decodes=decodes,
            prefills=prefills,
            drafts=drafts,
            mode=self.random.choice(("F/graph", "F/graph", "F/eager")),
            **lists,
        )

    def _act(self, choice: Choice, *, is_there: bool) -> str:
        acts = {
            "waiting": {"chunk": 10, "loading": 1, "": 10},
            "loading": {"loaded": 1, "": 1},
            "loaded": {"chunk": 3, "": 2},
            "midway": {"chunk": 15, "": 4, "preempted": 1},
            "decoding": {"decode": 20, "unscheduled": 1, "preempted": 1},
            "resting": {"decode": 6, "unscheduled": 3, "preempted": 1},
            "over": {"": 1},
        }[choice.state]
        act = self.random.choices([*acts], [*acts.values()])[0]
        return act if is_there or choice.state != "waiting" else ""

    def _chunk(self, choice: Choice) -> Prefill:
        tokens = self.random.randint(1, 40)
        tokens = min(tokens, choice.prompt_left)
        again = min(tokens, choice.again_left)
        choice.prompt_left -= tokens
        choice.again_left -= again
        choice.computed += tokens
        return Prefill(choice.ref, tokens - again, again, is_last=not choice.prompt_left)

    def _outcome(self, step: Step) -> None:
        """Move the choices on, and end those that have made all their tokens."""
        accepted = {draft.ref: draft.accepted for draft in step.drafts}
        for stream in self.streams:
            for choice in stream.choices:
                self._move_on(choice, 1 + accepted.get(choice.ref, 0))
                stream.counts["preemptions"] += choice.act == "preempted"
        for stream in [each for each in self.streams if each.is_over]:
            self.now_us += self.random.randrange(500)
            self._end(stream)

    def _move_on(self, choice: Choice, tokens: int) -> None:
        match choice.act:
            case "decode":
                choice.state = "decoding"
                self._make(choice, tokens)
            case "chunk" if not choice.prompt_left:
                choice.state, choice.begun = "decoding", True
                self._make(choice, 1)
            case "chunk":
                choice.state = "midway"
            case "preempted":
                choice.state = "waiting"
                choice.prompt_left += choice.computed
                choice.again_left += choice.computed
                choice.computed = 0
            case "unscheduled":
                choice.state = "resting"
            case "" if choice.state == "midway":
                choice.state = "waiting"
            case "loading" | "loaded":
                choice.state = choice.act

    def _make(self, choice: Choice, tokens: int) -> None:
        choice.made += [self.number] * tokens
        choice.computed += tokens
        choice.tokens_left -= tokens
        if choice.tokens_left <= 0:
            choice.state = "over"
            self.book.end_choice(choice.ref)

    # --- the naive accountant

    def _account(self, step: Step, begin_us: int, made_us: int, end_us: int) -> None:
        wait_us = self._waited(step, end_us - begin_us)
        refs = {choice.ref: each for each in self.streams for choice in each.choices}
        largest = max(step.prefills, key=lambda each: each.tokens + each.again, default=None)
        self.last_batch = step.decodes or self.last_batch
        for stream in self.streams:
            self._count(stream, step)
            whole_us = end_us - stream.at_us
            if whole_us <= 0:
                continue
            open_choices = [choice for choice in stream.choices if choice.state != "over"]
            before = first(self._stage(choice)[0] for choice in open_choices)
            during = {self._stage(choice)[1] for choice in open_choices}
            if "decode" in during:
                waited_us = min(wait_us, whole_us)
                stream.us["decode"] += whole_us - waited_us
                stream.us["prefill" if "prefill" in during else "decode_wait"] += waited_us
                is_notable = waited_us * NOTABLE >= end_us - begin_us - waited_us
                if "prefill" not in during and waited_us and is_notable:
                    assert largest is not None
                    stream.blocked_by[refs[largest.ref].request] += waited_us
            else:
                early_us = max(0, min(made_us, end_us) - stream.at_us)
                stream.us[before] += early_us
                stream.us[first(during)] += whole_us - early_us
            stream.at_us = end_us

    def _waited(self, step: Step, whole_us: int) -> int:
        if not step.decodes:
            return 0
        tokens = sum(each.tokens + each.again for each in step.prefills)
        if not tokens:
            self._times.learn(step.decodes, whole_us)
            return 0
        calm_us = self._times.of(step.decodes)
        if calm_us is None:
            return whole_us - whole_us * step.decodes // (step.decodes + tokens)
        if whole_us < calm_us:
            self._times.learn(step.decodes, whole_us)
            return 0
        return whole_us - int(calm_us)

    def _stage(self, choice: Choice) -> tuple[str, str]:
        """Return where a choice is before the step was made, and in it."""
        computing = "decode_wait" if choice.begun else "prefill"
        match choice.act:
            case "decode":
                return "decode", "decode"
            case "chunk":
                return (computing if choice.state == "midway" else choice.wait), computing
            case "loading":
                return choice.wait, "kv_load"
            case "loaded":
                return "kv_load", "kv_load"
            case "" if choice.state == "loading":
                return "kv_load", "kv_load"
        return choice.wait, choice.wait

    def _count(self, stream: Stream, step: Step) -> None:
        own = {choice.ref for choice in stream.choices}
        for chunk in step.prefills:
            if chunk.ref in own:
                stream.counts["first_step"] = stream.counts["first_step"] or step.number
                stream.counts["prefill_tokens"] += chunk.tokens
                stream.counts["recomputed_tokens"] += chunk.again
        for draft in step.drafts:
            if draft.ref in own:
                stream.counts["drafted_tokens"] += draft.drafted
                stream.counts["accepted_tokens"] += draft.accepted


def first(stages) -> str:
    """Return the stage that counts of several."""
    return min(stages, key=ORDER.index)
