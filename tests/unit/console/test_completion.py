"""Completion scripts know the command line; bash runs its script for real."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from services.console.cli import COMMANDS, parser
from services.console.completion import SHELLS, script, tree

ASK = """
{script}
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); _headrace; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(*words: str) -> list[str]:
    """What bash offers after some words."""
    quoted = " ".join(f"'{word}'" for word in ("headrace", *words))
    bash = shutil.which("bash")
    assert bash is not None
    asked = ASK.format(script=script("bash", parser()), words=quoted)
    done = subprocess.run(
        [bash, "-c", asked], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_are_offered():
    assert set(COMMANDS) <= set(completed(""))
    assert completed("desc") == ["describe"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("get", "llmservice", "-o", ""), {"table", "wide", "json", "yaml"}),
        (("get", "--na"), {"--name"}),
        (("model", ""), {"fetch", "ls"}),
        (("kv", "purge", "--older"), {"--older-than"}),
        (("completion", "f"), {"fish"}),
    ],
)
def test_options_actions_and_choices_are_offered(words, offered):
    assert offered <= set(completed(*words))


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_every_command(shell):
    text = script(shell, parser())
    assert all(name in text for name in COMMANDS)


def test_every_place_of_the_command_line_is_known():
    places = {place.path for place in tree(parser())}
    assert {(name,) for name in COMMANDS} <= places
    assert ("kv", "purge") in places
