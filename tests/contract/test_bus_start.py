"""How the NATS bus starts: no server, a frozen one, one that refuses us, wrong settings, permissions."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from shared.acl import SERVICES
from shared.errors import UserError
from shared.messages import Resend, TokenBatch
from shared.nats_config import ServerOptions, render
from shared.natsbus import NatsBus
from shared.settings import NatsSettings, Secret
from tests.support.buses import in_thread, start, until
from tests.support.nats_server import NatsServer, free_port
from tests.support.samples import E1, G1, answer, batch, cancel, resend


def test_no_server_at_start_is_told_within_the_timeout():
    port = free_port()
    start_s = time.monotonic()

    with pytest.raises(
        UserError,
        match=rf"no NATS server at nats://127.0.0.1:{port} within 0.5 s .*Connect call failed",
    ):
        start(NatsSettings(url=f"nats://127.0.0.1:{port}", connect_timeout_s=0.5))

    assert time.monotonic() - start_s < 5


def test_a_password_in_the_address_is_not_shown():
    url = f"nats://gateway:hush@127.0.0.1:{free_port()}"

    with pytest.raises(UserError, match="no NATS server at nats://127") as refusal:
        start(NatsSettings(url=url, connect_timeout_s=0.3))
    assert "hush" not in str(refusal.value)
    with pytest.raises(UserError, match="is no NATS address") as refusal:
        start(NatsSettings(url="http://gateway:hush@h:1"))
    assert "hush" not in str(refusal.value)


def test_a_server_that_comes_up_within_the_timeout_is_waited_for(tmp_path: Path):
    server = NatsServer(tmp_path)

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(in_thread(lambda: (time.sleep(0.5), server.start())[1]))
            bus = await NatsBus.connect(NatsSettings(url=server.url), group=group, name="early")
            await bus.close()

    try:
        asyncio.run(scenario())
    finally:
        server.kill()


@pytest.fixture
def guarded_server(tmp_path: Path):
    """A server with the product's own configuration: one user for each service."""
    port = free_port()
    options = ServerOptions(
        port=port,
        store_dir=str(tmp_path / "js"),
        passwords={service: f"pw-{service}" for service in SERVICES},
        open_api=False,
    )
    server = NatsServer(tmp_path, port=port, config=render(options))
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("user", ["", "gateway", "nobody"])
def test_a_wrong_password_is_told_at_once_and_names_the_user(guarded_server: NatsServer, user: str):
    start_s = time.monotonic()

    with pytest.raises(UserError, match="refuses user") as refusal:
        start(
            NatsSettings(
                url=guarded_server.url, user=user, password=Secret("wrong"), connect_timeout_s=30
            )
        )

    assert time.monotonic() - start_s < 10
    assert "wrong" not in str(refusal.value)


def test_services_talk_with_the_permissions_that_follow_from_the_routes(guarded_server: NatsServer):
    def settings(user: str) -> NatsSettings:
        return NatsSettings(url=guarded_server.url, user=user, password=Secret(f"pw-{user}"))

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            gateway = await NatsBus.connect(settings("gateway"), group=group, name="gateway")
            engine = await NatsBus.connect(settings("engine"), group=group, name="engine")
            got: list[TokenBatch] = []
            await gateway.subscribe(TokenBatch, got.append, gateway=G1)
            await engine.serve(Resend, answer, engine=E1)
            engine.publish(batch("x"))
            assert await gateway.request(resend(), timeout_s=5)
            await until(lambda: got)
            await gateway.close()
            await engine.close()

    asyncio.run(scenario())


def test_a_message_that_the_user_may_not_send_is_logged_and_harms_nothing_else(
    guarded_server: NatsServer, capsys: pytest.CaptureFixture[str]
):
    settings = NatsSettings(url=guarded_server.url, user="engine", password=Secret("pw-engine"))

    async def use(bus: NatsBus) -> None:
        bus.publish(cancel(1))
        await bus.flush(timeout_s=5)
        bus.publish(batch("x"))
        await bus.flush(timeout_s=5)
        assert bus.is_connected

    start(settings, use)

    assert "permissions violation" in capsys.readouterr().out.lower()


def test_a_server_with_too_small_messages_is_refused(tmp_path: Path):
    server = NatsServer(tmp_path, config="max_payload: 65536\n")
    server.start()
    try:
        with pytest.raises(UserError, match="takes 65536 bytes a message"):
            start(NatsSettings(url=server.url))
    finally:
        server.kill()


@pytest.mark.parametrize(
    "url", ["", "http://127.0.0.1:4222", "127.0.0.1:4222", "nats://", "nats://127.0.0.1:port"]
)
def test_an_address_that_is_none_is_refused(url: str):
    with pytest.raises(UserError, match="is no NATS address"):
        start(NatsSettings(url=url))


def test_a_missing_certificate_file_is_named():
    with pytest.raises(UserError, match=r"no file /nowhere/ca\.pem"):
        start(NatsSettings(tls_ca="/nowhere/ca.pem"))


def test_a_frozen_server_at_start_is_told_within_the_timeout(own_nats_server: NatsServer):
    own_nats_server.pause()

    with pytest.raises(UserError, match="no NATS server"):
        start(NatsSettings(url=own_nats_server.url, connect_timeout_s=1))


def test_a_start_that_is_cancelled_leaves_no_connection_open():
    async def scenario() -> None:
        came, gone = asyncio.Event(), asyncio.Event()

        async def greet_and_wait(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(b'INFO {"max_payload": 1048576}\r\n')
            came.set()
            while await reader.read(1024):
                pass
            gone.set()
            writer.close()

        server = await asyncio.start_server(greet_and_wait, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        settings = NatsSettings(url=f"nats://127.0.0.1:{port}", connect_timeout_s=30)
        async with server, asyncio.TaskGroup() as group:
            starting = group.create_task(NatsBus.connect(settings, group=group, name="hasty"))
            await came.wait()
            await asyncio.sleep(0.1)
            starting.cancel()
            async with asyncio.timeout(5):
                await gone.wait()

    asyncio.run(scenario())
