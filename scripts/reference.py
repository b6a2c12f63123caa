"""Writes the generated pages of docs/reference: messages, settings, command line, metrics. `--check` only compares.

Texts come from the docstrings in the code, so that a page cannot say what the code does not.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.metric_reference import metrics_page  # noqa: E402
from scripts.spec_reference import spec_page  # noqa: E402
from services.console.cli import COMMANDS, parser  # noqa: E402 - needs the path above
from services.engine.settings import EngineSettings  # noqa: E402
from services.gateway.settings import GatewaySettings  # noqa: E402
from services.host.settings import HostSettings  # noqa: E402
from services.kvstore.settings import KvStoreSettings  # noqa: E402
from services.operator.settings import OperatorSettings  # noqa: E402
from services.tracer.settings import TracerSettings  # noqa: E402
from shared.messages import ROUTES, Message, Route  # noqa: E402

PAGES = ROOT / "docs" / "reference"
MADE = "<!-- Made by scripts/reference.py: change the docstrings. -->\n"


class Help(argparse.HelpFormatter):
    """Help of one width, whatever terminal this runs in."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=110)


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring that follows each field of a class, its bases' fields included."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ in {"builtins", "msgspec"}:
            continue
        try:
            (tree,) = ast.parse(inspect.getsource(base)).body
        except (OSError, TypeError):
            continue
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            is_doc = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_doc:
                docs[field.target.id] = " ".join(str(text.value.value).split())
    return docs


BOUNDS = re.compile(r"Annotated\[((?:(?!Annotated\[).)*?), msgspec\.Meta\([^()]*\)\]")
"""A type with bounds, none within it."""


def type_text(kind: object) -> str:
    """Return a type as it is written, without module names."""
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    for prefix in (
        "typing.",
        "shared.messages.parts.",
        "shared.messages.engine.",
        "shared.messages.gateway.",
        "shared.messages.ledger.",
        "shared.messages.stages.",
        "shared.messages.kvstore.",
        "shared.messages.tracer.",
        "shared.ids.",
    ):
        text = text.replace(prefix, "")
    bounded = True
    while bounded:
        text, bounded = BOUNDS.subn(r"\1", text)
    return text.replace("|", "\\|")


def message_part(kind: type[Message]) -> list[str]:
    """Return the section of one message."""
    config = kind.__struct_config__
    docs = field_docs(kind)
    lines = [
        f"### `{config.tag}` {kind.__name__}",
        "",
        inspect.cleandoc(kind.__doc__ or ""),
        "",
        "| field | type | |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{f.encode_name}` | {type_text(f.type)} | {docs.get(f.name, '')} |"
        for f in msgspec.structs.fields(kind)
    ]
    return [*lines, ""]


def delivery_text(route: Route) -> str:
    """Return how a message travels and what the server keeps of it."""
    kept = route.stream
    if kept is None:
        return str(route.delivery)
    return f"{route.delivery} `{kept.name}`: {kept.max_age_s / 60:g} min, {kept.max_bytes >> 20} MiB, in memory"


def messages_page() -> str:
    """Return the page of all messages."""
    lines = [
        MADE,
        "# Messages on the bus",
        "",
        "MessagePack through msgspec; the tag is in field `t` (first element of the array for hot messages).",
        "A message is refused by its reader where its ids are not those of its subject, a count or a time is negative, a figure is not",
        "finite, or stages are missing (`shared/messages/parts.py`).",
        "",
    ]
    lines += ["| message | subject | delivery | from | to |", "|---|---|---|---|---|"]
    for kind, route in ROUTES.items():
        lines.append(
            f"| {kind.__name__} | `{route.subject}` | {delivery_text(route)} | {route.owner} | {', '.join(route.readers)} |"
        )
    lines.append("")
    seen: list[type[Message]] = []
    for kind, route in ROUTES.items():
        seen += [k for k in (kind, *route.replies) if k not in seen]
    for kind in seen:
        lines += message_part(kind)
    return "\n".join(lines)


def settings_rows(kind: type[msgspec.Struct], prefix: str, path: tuple[str, ...]) -> list[str]:
    """Return the table rows of a settings struct and of the structs in it."""
    docs, rows = field_docs(kind), []
    for field in msgspec.structs.fields(kind):
        here = (*path, field.encode_name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            rows += settings_rows(field.type, prefix, here)
            continue
        option = "--" + "-".join(here).replace("_", "-")
        default = "" if field.default is msgspec.NODEFAULT else f"`{field.default!r}`"
        rows.append(
            f"| `{option}` | `{prefix}{'_'.join(here).upper()}` | {default} | {docs.get(field.name, '')} |"
        )
    return rows


def settings_page() -> str:
    """Return the page of all settings."""
    lines = [
        MADE,
        "# Settings",
        "",
        "Later sources win: defaults, the TOML file that `--config` names, environment, command line.",
        "A password or key (`***`) may be given as a file: add `-file` to the option or `_FILE` to the variable.",
        "An unknown key or a value that does not fit stops the start.",
        "",
    ]
    for title, kind, prefix in (
        ("Gateway", GatewaySettings, "HEADRACE_GATEWAY_"),
        ("Engine", EngineSettings, "HEADRACE_ENGINE_"),
        ("Operator", OperatorSettings, "HEADRACE_OPERATOR_"),
        ("Tracer", TracerSettings, "HEADRACE_TRACER_"),
        ("Operator", OperatorSettings, "HEADRACE_OPERATOR_"),
        ("Host", HostSettings, "HEADRACE_HOST_"),
        ("KV store", KvStoreSettings, "HEADRACE_KVSTORE_"),
    ):
        module = title.lower().replace(" ", "")
        lines += [
            f"## {title}",
            "",
            f"`python -m services.{module}`",
            "",
            "| option | variable | default | |",
            "|---|---|---|---|",
        ]
        lines += [*settings_rows(kind, prefix, ()), ""]
    return "\n".join(lines)


def command_page() -> str:
    """Return the page of the command line."""
    top = parser()
    top.formatter_class = Help
    lines = [MADE, "# Command line", "", "```", top.format_help().rstrip(), "```", ""]
    for name, (_, declare) in COMMANDS.items():
        sub = argparse.ArgumentParser(prog=f"headrace {name}", formatter_class=Help)
        declare(sub)
        lines += [f"## {name}", "", "```", sub.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def main() -> int:
    """Write or compare all pages; return 1 where a page is stale."""
    check = "--check" in sys.argv[1:]
    pages = {
        "messages.md": messages_page(),
        "settings.md": settings_page(),
        "command-line.md": command_page(),
        "metrics.md": metrics_page(MADE),
        "llmservice.md": MADE + spec_page(),
    }
    stale = [
        name
        for name, text in pages.items()
        if not (PAGES / name).exists() or (PAGES / name).read_text() != text
    ]
    if check:
        for name in stale:
            sys.stderr.write(f"docs/reference/{name} is stale: run scripts/reference.py\n")
        return bool(stale)
    for name in stale:
        (PAGES / name).write_text(pages[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
