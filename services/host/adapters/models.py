"""Finds a replica's model on this machine, makes it where it can be made, and checks that it is what was applied."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from services.host.ports import CannotRun, NotNow, Order, Prepared, Say
from shared.errors import UserError
from shared.models.fetch import fetch, must_be_made
from shared.models.fingerprint import fingerprint
from shared.models.store import Model, resolve

Signature = tuple[tuple[str, int, int, int], ...]
"""Of each file: name, size, and when content and node changed."""


class ModelDesk:
    """The models of one host. Every byte of a model is read once for as long as its files do not change."""

    def __init__(self, folder: str, *, env: Mapping[str, str]) -> None:
        self._folder = Path(folder)
        self._env = env
        self._known: dict[Path, tuple[Signature, str]] = {}
        self._reading = asyncio.Lock()
        """One at a time: replicas of one model start together."""

    async def prepare(self, order: Order, say: Say) -> Prepared:
        """Return what a replica loads. Raises `CannotRun`, `NotNow`."""
        name = order.spec.model.name
        if order.spec.engine.backend != "vllm" and not self._is_here(name):
            return Prepared()  # it only plays a model
        model = await self._find(name, say)
        say("check")
        async with self._reading:
            found = await asyncio.to_thread(self._fingerprint, model.path)
        if order.fingerprint and found != order.fingerprint:
            raise CannotRun(
                f"drift: the files of {model.path} are {found}, applied was {order.fingerprint}; "
                "put the files back, or apply the service again to serve what is there now"
            )
        return Prepared(model=model.path, weight_bytes=model.weight_bytes, fingerprint=found)

    def _is_here(self, name: str) -> bool:
        return (Path(name) if "/" in name else self._folder / name).is_dir()

    async def _find(self, name: str, say: Say) -> Model:
        if await asyncio.to_thread(must_be_made, name, self._folder):
            say("fetch")
            try:
                return await fetch(
                    name, self._folder, env=self._env, progress=lambda step: say(f"fetch: {step}")
                )
            except UserError as error:
                raise NotNow(_text(error)) from error
        try:
            return await asyncio.to_thread(resolve, name, self._folder)
        except UserError as error:
            raise CannotRun(_text(error)) from error

    def _fingerprint(self, model: Path) -> str:
        try:
            signature = _signature(model)
            known = self._known.get(model)
            if known is None or known[0] != signature:
                known = self._known[model] = (signature, fingerprint(model))
        except (OSError, ValueError) as error:
            raise CannotRun(f"the model in {model} cannot be read: {error}") from error
        return known[1]


def _signature(model: Path) -> Signature:
    stats = ((file.name, file.stat()) for file in sorted(model.iterdir()) if file.is_file())
    return tuple((name, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for name, at in stats)


def _text(error: UserError) -> str:
    return f"{error}; {error.hint}" if error.hint else str(error)
