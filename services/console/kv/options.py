"""The options of `headrace kv`; see `services.console.cli`."""

from __future__ import annotations

import argparse

from services.console.arguments import age, positive


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    stats = actions.add_parser("stats", help="what is kept, on which disks, and how they are")
    ls = actions.add_parser("ls", help="the values of a namespace, the longest unused first")
    ls.add_argument("namespace", nargs="?", default="", help="its beginning (default: the largest)")
    ls.add_argument("--limit", type=positive, default=20, metavar="N", help="lines (default: 20)")
    ls.add_argument("--offset", type=int, default=0, metavar="N", help="leave out the first N")
    verify = actions.add_parser(
        "verify", help="read all values on all disks, and delete those that are broken"
    )
    purge = actions.add_parser("purge", help="delete values: those that fit all that is given")
    purge.add_argument("--service", default="", help="of engines of this service")
    purge.add_argument("--namespace", default="", help="of namespaces that begin so")
    purge.add_argument(
        "--older-than",
        type=age,
        default=0.0,
        metavar="AGE",
        help="not used for so long, as 7d, 12h",
    )
    purge.add_argument("--all", action="store_true", help="everything, where nothing else is given")
    for action in (stats, ls, verify, purge):
        action.add_argument(
            "--store", default="", metavar="ID", help="only this one, or its host's"
        )
        action.add_argument("--name", default="default", help="which platform of this machine")
        action.add_argument("--json", action="store_true", help="as JSON")
