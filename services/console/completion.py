"""Completion scripts for shells, made from the parser of the command line: they know its commands, actions, options and choices."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import msgspec

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ("headrace", "llm-platform-sdk")


class Words(msgspec.Struct, frozen=True):
    """What may come after some words of the command line."""

    path: tuple[str, ...]
    words: tuple[str, ...]
    """Commands, actions, options, and choices of what stands without an option."""
    choices: dict[str, tuple[str, ...]]
    """By option."""
    helps: dict[str, str] = {}
    """What a command or an option is for."""


def tree(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Words]:
    """Yield what may come at each place of a command line."""
    words: list[str] = []
    choices: dict[str, tuple[str, ...]] = {}
    helps: dict[str, str] = {}
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:  # noqa: SLF001 -- argparse has no other way to look in
        told = action.help or ""
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            below += list(action.choices.items())
            words += list(action.choices)
            helps |= {one.dest: one.help or "" for one in action._choices_actions}  # noqa: SLF001
        elif action.option_strings:
            words += action.option_strings
            helps |= dict.fromkeys(action.option_strings, told)
            if action.choices:
                found = tuple(map(str, action.choices))
                choices |= dict.fromkeys(action.option_strings, found)
        elif action.choices:
            words += map(str, action.choices)
    plain = {word: " ".join(text.split()) for word, text in helps.items() if text}
    yield Words(path, tuple(words), choices, plain)
    for name, sub in below:
        yield from tree(sub, (*path, name))


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the completion script of a shell: one of `SHELLS`."""
    places = list(tree(parser))
    return _fish(places) if shell == "fish" else _bash(places, is_zsh=shell == "zsh")


def _bash(places: list[Words], *, is_zsh: bool) -> str:
    lines = ["autoload -U +X bashcompinit && bashcompinit"] if is_zsh else []
    lines += [
        "_headrace() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" path="" one words=""',
        '    for one in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        '        case "$path $one" in',
    ]
    for place in places[1:]:
        path = " ".join(place.path)
        before = " ".join(place.path[:-1])
        lines.append(f'            "{before} {place.path[-1]}") path="{path}" ;;')
    lines += ["        esac", "    done", '    case "$path:$before" in']
    for place in places:
        path = " ".join(place.path)
        for option, found in place.choices.items():
            lines.append(f'        "{path}:{option}") words="{" ".join(found)}" ;;')
    lines += ['        *) case "$path" in']
    for place in places:
        lines.append(f'            "{" ".join(place.path)}") words="{" ".join(place.words)}" ;;')
    lines += [
        "        esac ;;",
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
        '    [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))',
        "}",
        *(f"complete -F _headrace {program}" for program in PROGRAMS),
    ]
    return "\n".join(lines)


def _fish(places: list[Words]) -> str:
    lines: list[str] = []
    for program in PROGRAMS:
        for place in places:
            lines += _fish_place(program, place)
    return "\n".join(lines)


def _fish_place(program: str, place: Words) -> Iterator[str]:
    begun = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in place.path)
    seen = begun or "__fish_use_subcommand"
    for word in place.words:
        told = place.helps.get(word, "").replace("\\", "").replace("'", "’")
        about = f" -d '{told}'" if told else ""
        found = place.choices.get(word, ())
        values = f" -x -a '{' '.join(found)}'" if found else ""
        if word.startswith("--"):
            yield f"complete -c {program} -n '{seen}' -l {word[2:]}{values}{about}"
        elif word.startswith("-"):
            yield f"complete -c {program} -n '{seen}' -s {word[1:]}{values}{about}"
        else:
            yield f"complete -c {program} -n '{seen}' -a {word}{about}"
