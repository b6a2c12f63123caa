"""The nats-server that other tests stand on: starts, keeps its port and its files, freezes and wakes."""

from __future__ import annotations

import asyncio
from typing import Any

import nats
import pytest
from nats.errors import NoServersError

from tests.support.nats_server import NatsServer


async def connect(server: NatsServer, **options: Any) -> nats.NATS:
    """A client that gives up at once."""
    return await nats.connect(server.url, connect_timeout=2, allow_reconnect=False, **options)


def test_shared_server_answers_and_has_jetstream(nats_server: NatsServer):
    async def scenario() -> int:
        client = await connect(nats_server)
        account = await client.jetstream().account_info()
        await client.close()
        return int(account.streams)

    assert asyncio.run(scenario()) >= 0


def test_a_killed_server_comes_back_on_its_port_with_its_streams(own_nats_server: NatsServer):
    async def publish() -> None:
        client = await connect(own_nats_server)
        stream = client.jetstream()
        await stream.add_stream(name="kept", subjects=["kept"])
        await stream.publish("kept", b"x")
        await client.close()

    async def read() -> int:
        client = await connect(own_nats_server)
        info = await client.jetstream().stream_info("kept")
        await client.close()
        return int(info.state.messages)

    asyncio.run(publish())
    own_nats_server.kill()
    assert not own_nats_server.is_running
    own_nats_server.start()

    assert 1 == asyncio.run(read())


def test_a_paused_server_answers_nothing_until_it_is_resumed(own_nats_server: NatsServer):
    async def scenario() -> None:
        client = await connect(own_nats_server)
        own_nats_server.pause()
        with pytest.raises(TimeoutError):
            await client.flush(timeout=1)
        own_nats_server.resume()
        await client.flush(timeout=5)
        await client.close()

    asyncio.run(scenario())


def test_a_stopped_server_refuses_clients(own_nats_server: NatsServer):
    own_nats_server.stop()

    async def no_trace(_error: Exception) -> None:
        """The refusal is expected; nats-py would log it."""

    with pytest.raises((NoServersError, OSError)):
        asyncio.run(connect(own_nats_server, error_cb=no_trace))


def test_a_port_in_use_is_told_with_the_servers_own_words(own_nats_server: NatsServer, tmp_path):
    second = NatsServer(tmp_path / "second", port=own_nats_server.port)

    with pytest.raises(RuntimeError, match="address already in use"):
        second.start()
