"""An engine learns from calm steps how long one may take, and says nothing where it cannot know."""

from __future__ import annotations

from services.engine.patience import FACTOR, LEAST_S, LEAST_STEPS, MEMORY_S, Patience

TICK_S = 0.1


class Steps:
    """An engine that steps evenly, looked at each `TICK_S`."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.now = 0.0
        self.step = 0

    def go(self, seconds: float, *, step_s: float, is_calm: bool = True) -> None:
        end, began = self.now + seconds, self.now
        first = self.step
        while self.now < end:
            self.now += TICK_S
            done = int((self.now - began) / step_s)
            self.step = first + done
            age_s = self.now - began - done * step_s
            self.patience.observe(self.step, age_s, is_calm=is_calm, now=self.now)


def test_nothing_is_said_without_experience():
    patience = Patience()
    Steps(patience).go(LEAST_STEPS * 0.5 - 1, step_s=0.5)

    assert patience.bound_s(is_calm=True) == 0.0


def test_quick_steps_leave_the_least_bound():
    patience = Patience()
    Steps(patience).go(10, step_s=0.03)

    assert patience.bound_s(is_calm=True) == LEAST_S


def test_slow_steps_get_a_multiple_of_the_longest():
    patience = Patience()
    steps = Steps(patience)
    steps.go(60, step_s=1.0)

    assert 0.8 * FACTOR <= patience.bound_s(is_calm=True) <= FACTOR


def test_while_a_prompt_is_computed_nothing_is_said_and_nothing_is_learned():
    patience = Patience()
    steps = Steps(patience)
    steps.go(10, step_s=0.03)
    steps.go(20, step_s=5.0, is_calm=False)

    assert patience.bound_s(is_calm=False) == 0.0
    steps.go(1, step_s=0.03)
    assert patience.bound_s(is_calm=True) == LEAST_S


def test_what_was_long_ago_fades():
    patience = Patience()
    steps = Steps(patience)
    steps.go(60, step_s=1.0)
    before = patience.bound_s(is_calm=True)
    steps.go(3 * MEMORY_S, step_s=0.03)

    assert patience.bound_s(is_calm=True) < before / 3
