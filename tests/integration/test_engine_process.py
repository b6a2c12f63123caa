"""An engine as a process on a real NATS server: it serves, survives the server's restart, drains, and dies loudly."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request

from shared.messages import EngineState, Finish, RefuseReason
from tests.support.engine_process import ROOT, engine_process
from tests.support.engine_shell import PretendGateway, ends
from tests.support.nats_server import NatsServer, free_port
from tests.support.openai_server import OpenAiServer

FAKE = ("--backend", "fake", "--fake-step-s", "0.01")


async def over(gateway: PretendGateway, stream: int) -> None:
    """Return once the stream's last delta came."""
    async with asyncio.timeout(20):
        while not gateway.is_over(stream):  # noqa: ASYNC110 - the gateway only keeps
            await asyncio.sleep(0.02)


def test_it_answers_over_the_bus(nats_server, tmp_path):
    async def scenario():
        async with engine_process(nats_server, tmp_path, *FAKE, "--name", "one") as (
            engine,
            gateway,
        ):
            streams = [await gateway.accepted(max_tokens=50, text=f"{n}") for n in range(8)]
            for stream in streams:
                await over(gateway, stream)

                assert [d.seq for d in gateway.deltas(stream)] == list(range(50))
            assert engine.beats[-1].name == "one"
            assert engine.beats[-1].backend == "fake"

    asyncio.run(scenario())


def test_a_drain_finishes_what_runs_and_ends_with_0(nats_server, tmp_path):
    async def scenario():
        async with engine_process(nats_server, tmp_path, *FAKE) as (engine, gateway):
            stream = await gateway.accepted(max_tokens=100)
            engine.stop()
            await engine.state(EngineState.DRAINING)
            refused = await gateway.ask(gateway.submit())
            await over(gateway, stream)

            assert refused.reason is RefuseReason.DRAINING
            assert await engine.exit_code() == 0
            assert len(gateway.deltas(stream)) == 100

    asyncio.run(scenario())


def test_what_outlasts_the_drain_is_handed_back(nats_server, tmp_path):
    async def scenario():
        options = (*FAKE, "--drain-s", "0.5")
        async with engine_process(nats_server, tmp_path, *options) as (engine, gateway):
            stream = await gateway.accepted(max_tokens=5000)
            engine.stop()

            assert await engine.exit_code() == 0
            await over(gateway, stream)
            last = gateway.deltas(stream)[-1]
            assert last.finish is Finish.ERROR
            assert last.extra.error.retryable

    asyncio.run(scenario())


def test_it_survives_a_restart_of_the_server(own_nats_server: NatsServer, tmp_path):
    async def scenario():
        async with engine_process(own_nats_server, tmp_path, *FAKE) as (_, gateway):
            stream = await gateway.accepted(max_tokens=600)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(own_nats_server.kill)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(own_nats_server.start)
            await over(gateway, stream)
            came = {delta.seq: delta for delta in gateway.deltas(stream)}
            for seq in range(600):
                if seq not in came:
                    came |= {d.seq: d for d in (await gateway.resend(stream, seq)).deltas}

            assert sorted(came) == list(range(600))
            assert ends(came[599])
            assert await gateway.accepted()

    asyncio.run(scenario())


def test_a_dead_backend_ends_the_process(nats_server, tmp_path):
    async def scenario():
        server = OpenAiServer()
        url = await server.start()
        options = ("--backend", "openai", "--openai-url", url)
        options += ("--openai-probe-s", "0.1", "--openai-probes-lost", "2")
        async with engine_process(nats_server, tmp_path, *options) as (engine, gateway):
            stream = await gateway.accepted(max_tokens=5)
            await over(gateway, stream)
            assert gateway.text(stream)
            server.is_ill = True

            assert (await engine.state(EngineState.FAILED)).reason
            assert await engine.exit_code() not in (0, None)
            assert "probes" in engine.log
        await server.stop()

    asyncio.run(scenario())


def test_metrics_are_served_on_loopback(nats_server, tmp_path):
    async def scenario():
        port = free_port()
        options = (*FAKE, "--metrics-port", str(port))
        async with engine_process(nats_server, tmp_path, *options) as (engine, gateway):
            await over(gateway, await gateway.accepted(max_tokens=5))
            url = f"http://127.0.0.1:{port}/metrics"
            page = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())

            own = f'engine="{engine.beats[-1].engine}"'
            of = f'service="{engine.service}"'
            assert f'llm_engine_tokens_total{{{own},{of},version=""}} 5.0' in page
            assert (
                f'llm_engine_streams_ended_total{{end="complete",{own},{of},version=""}} 1.0'
                in page
            )
            assert f'llm_engine_state{{{own},{of},state="ready",version=""}} 1.0' in page
            assert "headrace_bus_connected 1.0" in page

    asyncio.run(scenario())


def test_a_setting_that_is_none_ends_it_with_one_line():
    argv = [sys.executable, "-m", "services.engine", "--backend", "fake", "--nats-url", "nonsense"]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)

    assert ended.returncode == 2
    assert "nats" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


FORK = """
import os, sys
import services.engine.__main__ as engine
pid = os.fork()
if pid == 0:
    os._exit(engine.main(sys.argv[1:]))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_it_runs_in_a_forked_child(nats_server, tmp_path):
    argv = [
        sys.executable,
        "-c",
        FORK,
        "--backend",
        "openai",
        "--openai-url",
        "http://127.0.0.1:1/v1",
    ]
    argv += ["--openai-start-timeout-s", "0.2", "--nats-url", nats_server.url]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)

    assert ended.returncode == 2
    assert "openai.url" in ended.stderr
