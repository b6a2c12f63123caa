"""The options of the four commands; see `services.console.cli`."""

from __future__ import annotations

import argparse

from services.console.arguments import duration, positive, stage, window


def _platform(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="default", help="which platform of this machine")


def trace(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headrace trace`."""
    parser.add_argument(
        "id",
        metavar="ID",
        help="id of the request (`id` in its answer, `Hr-Request-Id` in the headers), of its trace, or the caller's; or its beginning",
    )
    parser.add_argument(
        "--token",
        type=positive,
        metavar="N",
        help="say when, in which step and in which batch the N-th generated token was made",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    _platform(parser)


def top(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headrace top`."""
    parser.add_argument(
        "--interval",
        type=duration,
        default=1.0,
        metavar="S",
        help="between two pictures (default: 1s)",
    )
    parser.add_argument("--once", action="store_true", help="one picture, then end")
    _platform(parser)


def logs(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headrace logs`."""
    parser.add_argument("service", metavar="SERVICE", help="name that clients put into `model`")
    parser.add_argument(
        "--stage",
        type=stage,
        metavar="STAGE",
        help="only requests of which this stage (as queue, decode_wait) was the largest part, or a quarter",
    )
    parser.add_argument(
        "--tail", type=positive, default=100, metavar="N", help="the last N lines (default: 100)"
    )
    slow = parser.add_mutually_exclusive_group()
    slow.add_argument(
        "--slow", action="store_true", help="only those slower than the p95 of the last hour"
    )
    slow.add_argument("--slower-than", type=duration, metavar="S", help="only those above, as 2s")
    parser.add_argument("--follow", action="store_true", help="go on with what ends from now on")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    _platform(parser)


def blame(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headrace blame`."""
    parser.add_argument("service", metavar="SERVICE", help="name that clients put into `model`")
    parser.add_argument(
        "--window",
        type=window,
        default=300.0,
        metavar="S",
        help="how far back, as 90s, 5m, 1h (default: 5m)",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    _platform(parser)
