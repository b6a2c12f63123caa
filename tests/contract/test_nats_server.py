"""The nats-server that other tests stand on: starts, keeps its port and its files, freezes and wakes."""

from __future__ import annotations

import asyncio
import select
import socket

import nats
import pytest

from tests.support.nats_server import NatsServer


async def connect(server: NatsServer) -> nats.NATS:
    """A client that gives up at once."""
    return await nats.connect(server.url, connect_timeout=2, allow_reconnect=False)


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
    with socket.create_connection(("127.0.0.1", own_nats_server.port), 5) as client:
        answers = client.makefile("rb")
        assert answers.readline().startswith(b"INFO ")
        own_nats_server.pause()
        client.sendall(b"CONNECT {}\r\nPING\r\n")

        assert [] == select.select([client], [], [], 0.3)[0]
        own_nats_server.resume()
        assert b"PONG\r\n" in (answers.readline(), answers.readline())
        answers.close()


def test_a_stopped_server_refuses_clients(own_nats_server: NatsServer):
    own_nats_server.stop()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", own_nats_server.port), 5)


def test_a_port_in_use_is_told_with_the_servers_own_words(own_nats_server: NatsServer, tmp_path):
    second = NatsServer(tmp_path / "second", port=own_nats_server.port)

    with pytest.raises(RuntimeError, match="address already in use"):
        second.start()
