"""The options of the commands that declare services; see `services.console.cli`."""

from __future__ import annotations

import argparse

from services.console.arguments import duration, whole

KINDS = ("llmservice", "llmservices", "llms")
TIMEOUT_S = 600.0


def _platform(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", default="default", dest="platform", help="which platform of this machine"
    )


def _wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-wait", action="store_true", help="do not wait until it is so")
    parser.add_argument(
        "--timeout",
        type=duration,
        default=TIMEOUT_S,
        metavar="S",
        help="how long to wait (default: 10m)",
    )


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="form of the result"
    )


def apply(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headrace apply`."""
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        required=True,
        metavar="FILE",
        help="YAML file, folder of such, or - for standard input; may be given again",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would change")
    _wait(parser)
    _json(parser)
    _platform(parser)


def get(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headrace get`."""
    parser.add_argument("kind", choices=KINDS, metavar="llmservice", help="what to list")
    parser.add_argument("service", nargs="?", default="", metavar="NAME", help="only this one")
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json", "yaml"),
        default="table",
        help="form of the result; yaml: what was declared",
    )
    parser.add_argument("-w", "--watch", action="store_true", help="show it again on each change")
    _platform(parser)


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headrace describe`."""
    parser.add_argument("kind", choices=KINDS, metavar="llmservice", help="what to describe")
    parser.add_argument("service", metavar="NAME")
    _json(parser)
    _platform(parser)


def delete(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headrace delete`."""
    parser.add_argument("kind", choices=KINDS, metavar="llmservice", help="what to delete")
    parser.add_argument("service", metavar="NAME")
    _wait(parser)
    _platform(parser)


def scale(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headrace scale`."""
    parser.add_argument("service", metavar="NAME")
    parser.add_argument(
        "--replicas", type=whole, required=True, metavar="N", help="within the spec's bounds"
    )
    _wait(parser)
    _platform(parser)


def rules(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headrace rules`."""
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="of the services in these files (default: of all that are declared)",
    )
    _platform(parser)


def schema(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `headrace schema`: none."""
    del parser
