"""The options of `headrace validate-model`, `debug-logits`, `capture` and `model quantize`; see `services.console.cli`."""

from __future__ import annotations

import argparse

from services.console.arguments import duration, positive, positive_number
from shared.models.probe import MAX_TOP

MAX_CAPTURE_S = 3600.0
PATH = "a name (`headrace model ls`) or a directory in HF layout"


def _probe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--start-timeout",
        type=positive_number,
        default=600.0,
        metavar="S",
        help="deadline of loading (default: 600)",
    )
    parser.add_argument(
        "--step-timeout",
        type=positive_number,
        default=300.0,
        metavar="S",
        help="deadline of each step after it (default: 300)",
    )
    parser.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the engine, as vllm-dtype=float32 (see docs/reference/settings.md)",
    )
    _json(parser)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="format")
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="as JSON")


def _share(text: str) -> float:
    """Return a share, 0 to 1. Raises `argparse.ArgumentTypeError`."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return value


def validate(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `validate-model`."""
    parser.add_argument("--model", required=True, metavar="MODEL", help=PATH)
    parser.add_argument(
        "--reference",
        metavar="MODEL",
        help="what it is compared with, as the model that it was quantized from",
    )
    parser.add_argument(
        "--answer-tokens",
        type=positive,
        default=256,
        metavar="N",
        help="longest answer; more for a model that thinks first (default: 256)",
    )
    bounds = parser.add_argument_group(
        "bounds", "where they come from stands in docs/how-to/check-a-model.md"
    )
    bounds.add_argument("--min-cache-hit-rate", type=_share, metavar="SHARE", help="default: 0.85")
    bounds.add_argument("--min-finished", type=_share, metavar="SHARE", help="default: 0.75")
    bounds.add_argument("--max-repetition", type=_share, metavar="SHARE", help="default: 0.07")
    bounds.add_argument(
        "--max-own-perplexity", type=positive_number, metavar="X", help="default: 5"
    )
    bounds.add_argument("--max-perplexity", type=positive_number, metavar="X", help="default: 30")
    bounds.add_argument(
        "--max-perplexity-ratio", type=positive_number, metavar="X", help="default: 1.1"
    )
    _probe(parser)


def logits(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debug-logits`."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", metavar="TEXT", help="a user's message")
    what.add_argument(
        "--request-id",
        metavar="ID",
        help="a request that a gateway captured (`headrace capture on`), by its id or X-Request-Id",
    )
    parser.add_argument("--model", default="smollm2", metavar="MODEL", help=PATH)
    parser.add_argument("--against", metavar="MODEL", help="the reference, shown beside it")
    parser.add_argument(
        "--raw", action="store_true", help="the prompt as it is, without the model's chat template"
    )
    parser.add_argument(
        "--positions",
        choices=("generated", "prompt"),
        default="generated",
        help="the answer's first tokens (default), or the prompt's",
    )
    parser.add_argument(
        "--tokens", type=positive, default=8, metavar="N", help="positions (default: 8)"
    )
    parser.add_argument(
        "--top",
        type=_top,
        default=10,
        metavar="K",
        help=f"tokens at each of them, up to {MAX_TOP} (default: 10)",
    )
    parser.add_argument(
        "--threshold",
        type=positive_number,
        default=0.5,
        metavar="NAT",
        help="difference of a log probability that counts as a deviation (default: 0.5)",
    )
    parser.add_argument(
        "--name", default="default", help="which platform of this machine (for --request-id)"
    )
    _probe(parser)


def _top(text: str) -> int:
    """Return how many alternatives to show. Raises `argparse.ArgumentTypeError`."""
    if not text.isdigit() or not 1 <= int(text) <= MAX_TOP:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MAX_TOP}")
    return int(text)


def quantize(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `model quantize`."""
    parser.add_argument("model", metavar="MODEL", help=PATH)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder that is made")
    parser.add_argument(
        "--bits", type=int, choices=(4,), default=4, help="of a weight (AWQ has 4; default: 4)"
    )
    parser.add_argument(
        "--group-size",
        type=positive,
        default=128,
        metavar="N",
        help="weights that share a scale and a zero point (default: 128)",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="text like that which the model will see (default: what it writes itself)",
    )
    parser.add_argument(
        "--python",
        metavar="PROGRAM",
        help="a Python that has llm-compressor (default: HEADRACE_HOME/quantize/bin/python, else this one)",
    )
    parser.add_argument(
        "--timeout",
        type=positive_number,
        default=14_400.0,
        metavar="S",
        help="deadline (default: 14400)",
    )


def capture(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of `capture` and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    on = actions.add_parser("on", help="keep the prompts of a service in the gateways' memory")
    on.add_argument(
        "--for",
        dest="seconds",
        type=_capture_time,
        default=600.0,
        metavar="TIME",
        help="then all is forgotten; up to 1h (default: 10m)",
    )
    off = actions.add_parser("off", help="stop, and forget what was kept")
    status = actions.add_parser("status", help="how long it goes on, and how much is kept")
    for action in (on, off, status):
        action.add_argument("service", help="what clients put into `model`")
        action.add_argument("--name", default="default", help="which platform of this machine")
        _json(action)


def _capture_time(text: str) -> float:
    """Return seconds of a capture. Raises `argparse.ArgumentTypeError`."""
    seconds = duration(text)
    if seconds > MAX_CAPTURE_S:
        raise argparse.ArgumentTypeError(f"{text!r} is too long: prompts are kept for up to 1h")
    return seconds
