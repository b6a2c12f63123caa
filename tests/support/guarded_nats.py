"""A NATS server with our own configuration: a user for each service, with the rights that the contract gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nats

from shared.acl import CLIENT, SERVICES, inbox_prefix
from shared.nats_config import ServerOptions, render
from shared.natsbus import NatsBus
from shared.settings import NatsSettings, Secret
from tests.support.buses import until
from tests.support.nats_server import NatsServer, free_port


@contextmanager
def guarded(folder: Path) -> Iterator[NatsServer]:
    """A server that runs meanwhile."""
    port = free_port()
    options = ServerOptions(
        port=port, store_dir=str(folder / "js"), passwords={name: f"pw-{name}" for name in SERVICES}
    )
    server = NatsServer(folder, port=port, config=render(options))
    server.start()
    try:
        yield server
    finally:
        server.kill()


async def joined(server: NatsServer, user: str, *, group: asyncio.TaskGroup) -> NatsBus:
    """A bus of a service with its own password."""
    settings = NatsSettings(url=server.url, user=user, password=Secret(f"pw-{user}"))
    return await NatsBus.connect(settings, group=group, name=user)


async def refused(
    server: NatsServer, user: str, tried: set[str], *, at_least: set[str]
) -> set[str]:
    """Return which of the tried subjects a user may not publish to; wait for `at_least`, since the server's word comes any time."""
    said: list[str] = []

    async def on_error(error: Exception) -> None:
        said.append(str(error).lower())

    def told() -> set[str]:
        return {s for s in tried if any(f'publish to "{s}"'.lower() in text for text in said)}

    client = await nats.connect(
        server.url,
        error_cb=on_error,
        inbox_prefix=inbox_prefix(user),
        **({} if user == CLIENT else {"user": user, "password": f"pw-{user}"}),
    )
    for subject in tried:
        await client.publish(subject, b"{}", reply=client.new_inbox())
    await client.flush()
    with suppress(TimeoutError):
        await until(lambda: told() >= at_least)
    await client.close()
    return told()
