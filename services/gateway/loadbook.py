"""What this gateway knows about each engine's load beyond its last heartbeat. No clock, no bus.

A heartbeat is up to half a second old; what this gateway sent since then is missing from it, what ended since then is still in it.
The book keeps both differences, and each heartbeat corrects them, so an error lives for one beat at most.
"""

from __future__ import annotations

from typing_extensions import override

from services.gateway.penalty import Penalty
from shared.ids import EngineId, StreamNo
from shared.messages import EngineHeartbeat, EngineState


class Held:
    """What one stream of ours holds at an engine."""

    __slots__ = ("answered", "begun_beats", "choices", "saved_tokens", "work_tokens")

    def __init__(self, *, work_tokens: int, saved_tokens: int, choices: int) -> None:
        self.work_tokens = work_tokens
        self.saved_tokens = saved_tokens
        self.choices = choices
        self.answered = False
        self.begun_beats = -1
        """Heartbeats heard before its first delta came; -1: none came."""

    @property
    def net_tokens(self) -> int:
        """What it is expected to make the engine do."""
        return max(1, self.work_tokens - self.saved_tokens)


class Account:
    """The load of one engine as this gateway sees it."""

    __slots__ = (
        "_beats",
        "_ended_tokens",
        "_held",
        "_reported_tokens",
        "_unseen",
        "_unseen_tokens",
        "least_trip_us",
        "others_choices",
        "own_choices",
        "penalty",
        "ready_since",
    )

    def __init__(self) -> None:
        self._held: dict[StreamNo, Held] = {}
        self._unseen: set[StreamNo] = set()
        self._unseen_tokens = 0
        self._reported_tokens = 0
        self._ended_tokens = 0
        self._beats = 0
        self.own_choices = 0
        self.others_choices = 0
        """Choices of other gateways, as of the last heartbeat."""
        self.ready_since: float | None = None
        self.penalty = Penalty()
        self.least_trip_us = -1
        """Least time that a submit and its reply were on their way; -1: none seen."""

    @property
    def own_streams(self) -> int:
        """Streams of ours that are open here."""
        return len(self._held)

    def outstanding_tokens(self, *, gateways: int = 1) -> int:
        """Return the token work left here now; other gateways are assumed to have sent as much since the last beat as this one."""
        seen = max(0, self._reported_tokens - self._ended_tokens)
        return seen + self._unseen_tokens * gateways

    def observe(self, beat: EngineHeartbeat, *, now: float) -> None:
        """Take the engine's own figures; what it has answered is in them, what is on its way is not."""
        self._beats += 1
        self._reported_tokens = beat.outstanding_tokens
        self._ended_tokens = 0
        self._unseen = {stream for stream in self._unseen if not self._held[stream].answered}
        self._unseen_tokens = sum(self._held[stream].net_tokens for stream in self._unseen)
        self.others_choices = max(0, beat.running + beat.waiting - self.own_choices)
        if beat.state is not EngineState.READY:
            self.ready_since = None
        elif self.ready_since is None:
            self.ready_since = now

    def sent(
        self, stream: StreamNo, *, work_tokens: int, choices: int, saved_tokens: int = 0
    ) -> None:
        """Count a submit that leaves now; `saved_tokens`: work that the engine is expected to have done before."""
        held = Held(work_tokens=work_tokens, saved_tokens=saved_tokens, choices=choices)
        self._held[stream] = held
        self._unseen.add(stream)
        self._unseen_tokens += held.net_tokens
        self.own_choices += choices

    def answered(self, stream: StreamNo) -> None:
        """Note that the engine took the stream: its next heartbeat includes it."""
        held = self._held.get(stream)
        if held is not None:
            held.answered = True

    def begun(self, stream: StreamNo) -> None:
        """Note the first delta of a stream: from the next heartbeat on its prompt is not in the figures any more."""
        held = self._held.get(stream)
        if held is not None and held.begun_beats < 0:
            held.begun_beats = self._beats

    def trip(self, us: int) -> int:
        """Note how long a submit and its reply were on their way; return the least seen so far."""
        if self.least_trip_us < 0 or us < self.least_trip_us:
            self.least_trip_us = us
        return self.least_trip_us

    def ended(self, stream: StreamNo, *, unused_tokens: int) -> None:
        """Forget a stream; `unused_tokens` of its work will never be done. A second call changes nothing.

        The last heartbeat still has what was left of it then: all of it, prompt and answer, where its first delta came later. Whoever
        asks for the next turn of a conversation at once would else find the engine that has it busy with the turn before.
        """
        held = self._held.pop(stream, None)
        if held is None:
            return
        self.own_choices -= held.choices
        if stream in self._unseen:
            self._unseen.discard(stream)
            self._unseen_tokens -= held.net_tokens
        elif held.begun_beats == self._beats:
            self._ended_tokens += held.work_tokens
        else:
            self._ended_tokens += min(max(0, unused_tokens), held.work_tokens)

    @override
    def __repr__(self) -> str:
        return f"<Account {len(self._held)} own streams, {self.outstanding_tokens()} tokens>"


class LoadBook:
    """The accounts of all engines."""

    def __init__(self) -> None:
        self._accounts: dict[EngineId, Account] = {}

    @override
    def __repr__(self) -> str:
        return f"<LoadBook {self._accounts}>"

    @property
    def own_choices(self) -> int:
        """Choices of ours over all engines."""
        return sum(account.own_choices for account in self._accounts.values())

    def account(self, engine: EngineId) -> Account:
        """Return the account of an engine, opened on first use."""
        account = self._accounts.get(engine)
        if account is None:
            account = self._accounts[engine] = Account()
        return account

    def forget(self, engine: EngineId) -> None:
        """Close the account of an engine that is gone, once nothing of ours is left there."""
        account = self._accounts.get(engine)
        if account is not None and account.own_streams == 0:
            del self._accounts[engine]
