"""The options of `headrace bench`; see `services.console.cli`."""

from __future__ import annotations

import argparse

from services.console.arguments import positive, positive_number


def server(parser: argparse.ArgumentParser) -> None:
    """Declare which server is talked to."""
    parser.add_argument(
        "--url",
        default="http://127.0.0.1:8000",
        help="an OpenAI-compatible server (default: %(default)s)",
    )
    parser.add_argument("--model", help="default: the first that the server lists")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    server(parser)
    parser.add_argument(
        "--concurrency",
        type=positive,
        default=32,
        metavar="N",
        help="requests in flight (default: 32)",
    )
    parser.add_argument(
        "--input-len",
        type=positive,
        default=512,
        metavar="TOKENS",
        help="prompt length (default: 512)",
    )
    parser.add_argument(
        "--output-len",
        type=positive,
        default=256,
        metavar="TOKENS",
        help="answer length (default: 256)",
    )
    parser.add_argument(
        "--rate",
        type=positive_number,
        metavar="R",
        help="Poisson arrivals per second (default: as fast as answered)",
    )
    parser.add_argument(
        "--duration", type=positive_number, metavar="S", help="seconds in which requests begin"
    )
    parser.add_argument(
        "--requests",
        type=positive,
        metavar="N",
        help="how many requests (default: 4 × concurrency)",
    )
    parser.add_argument(
        "--token-index",
        type=positive,
        default=10,
        metavar="N",
        help="report the arrival of this token too (default: 10)",
    )
    parser.add_argument(
        "--no-ignore-eos",
        action="store_true",
        help="let answers end early (for servers that refuse `ignore_eos`)",
    )
    parser.add_argument(
        "--timeout",
        type=positive_number,
        default=600.0,
        metavar="S",
        help="deadline of a request (default: 600)",
    )
    parser.add_argument("--seed", type=int, default=0, help="same seed, same prompts and arrivals")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
