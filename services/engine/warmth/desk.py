"""Tells the gateways which beginnings of prompts are held here: news with each tick, the whole on request. Never waits."""

from __future__ import annotations

from typing_extensions import override

from services.engine.settings import WarmthSettings
from services.engine.stepbook import StepBook
from services.engine.steps.step import Step
from services.engine.streams import Streams
from services.engine.warmth.guess import GuessPool
from services.engine.warmth.map import BlockMap
from services.engine.warmth.pieces import PieceBook
from shared import logs
from shared.bus import Bus
from shared.clock import loop_clock
from shared.errors import HeadraceError
from shared.ids import EngineId, ServiceName
from shared.messages import Chain, Warmth, WarmthQuery, WarmthWhole
from shared.quiet import Quiet

MAX_NEWS = 4096
"""Pieces in one message: 36 KiB. With a tick of 100 ms at most 360 KiB/s; what finds no room goes with the next one."""


class WarmthDesk:
    """Hears each step, publishes. Made inside the running loop."""

    def __init__(
        self,
        bus: Bus,
        book: StepBook,
        streams: Streams,
        settings: WarmthSettings,
        *,
        service: ServiceName,
        engine: EngineId,
    ) -> None:
        self._bus = bus
        self._steps = book
        self._streams = streams
        self._settings = settings
        self._service = service
        self._engine = engine
        self._store = ""
        self._pieces = PieceBook(settings.max_pieces)
        self._blocks = BlockMap(self._pieces)
        self._guess: GuessPool | None = None
        self._whole: WarmthWhole | None = None
        """The last answer: ten milliseconds of work that gateways which missed the same news share."""
        self.seq = 0
        """Number of the last news."""
        self._log = logs.get("engine").bind(engine=engine)
        self._quiet = Quiet(loop_clock())
        if settings.enabled:
            book.listeners.append(self._on_step)

    @override
    def __repr__(self) -> str:
        return f"<WarmthDesk seq={self.seq} {self._pieces!r} {self._blocks!r}>"

    def begin(self, *, tells_blocks: bool, pool_tokens: int, store: str = "") -> None:
        """Take what the backend can do, once it has started; `pool_tokens`: size of its pool, 0 where it is not known."""
        self._store = store
        if not tells_blocks:
            self._guess = GuessPool(
                self._pieces, pool_tokens=pool_tokens or self._settings.guess_tokens
            )

    def accepted(self, chain: Chain | None, prompt_tokens: int) -> None:
        """Note that the backend took a prompt; of use only where it tells nothing later."""
        if self._guess is not None and chain is not None and self._settings.enabled:
            self._guess.prompt(chain, prompt_tokens)

    def publish(self) -> None:
        """Send what is new since the last time, if anything is."""
        if not self._pieces.has_news and not self._must_name_store:
            return
        hashes, tiers = self._pieces.news(MAX_NEWS)
        self.seq += 1
        news = Warmth(
            service=self._service,
            engine=self._engine,
            seq=self.seq,
            hashes=hashes,
            tiers=tiers,
            store=self._store,
            is_guess=self._guess is not None,
        )
        try:
            self._bus.publish(news)
        except HeadraceError as error:
            # Its number is used up, so everybody sees that something is missing and asks.
            if times := self._quiet.due(type(error).__name__):
                self._log.warning("warmth_unsent", reason=str(error), times=times)

    async def on_query(self, _query: WarmthQuery) -> WarmthWhole:
        """Return all that is held, as of the last news."""
        if self._whole is not None and self._whole.seq == self.seq:
            return self._whole
        hashes, tiers = self._pieces.whole()
        self._whole = WarmthWhole(
            engine=self._engine,
            seq=self.seq,
            hashes=hashes,
            tiers=tiers,
            store=self._store,
            is_guess=self._guess is not None,
        )
        return self._whole

    @property
    def _must_name_store(self) -> bool:
        """Whether the gateways do not know yet which store this engine reads from: others may have filled it."""
        return not self.seq and bool(self._store) and self._settings.enabled

    def _on_step(self, step: Step) -> None:
        news = step.blocks
        if news is None:
            return
        self._blocks.apply(news)
        for prompt in news.prompts:
            stream = self._streams.live.get(self._steps.key_of(prompt.ref) or "")
            if stream is not None and stream.chain is not None:
                self._blocks.prompt(stream.chain, prompt)
