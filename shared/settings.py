"""Settings of a process: defaults, then a TOML file, then the environment, then the command line. The one reader of the environment.

An unknown key or an unparsable value from any source stops the start with a message that says where it stood and what belongs there.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_origin

import msgspec
from typing_extensions import override

from shared.errors import UserError

S = TypeVar("S", bound=msgspec.Struct)

FILE_SUFFIX = "_file"
CONFIG = "config"
"""`--config FILE` and `<PREFIX>CONFIG` name the TOML file."""


class Secret:
    """A value that must not be shown: only `reveal` gives it."""

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    @override
    def __hash__(self) -> int:
        return hash(self._value)

    @override
    def __repr__(self) -> str:
        return "***" if self._value else "(none)"


class NatsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach the bus."""

    url: str = "nats://127.0.0.1:4222"
    """Address of the server; several with commas between them."""
    user: str = ""
    """User at the server; the service's name where the server's configuration is ours."""
    password: Secret = Secret()
    """Password of the user; `password_file` names a file that holds it."""
    token: Secret = Secret()
    """Instead of user and password."""
    creds_file: str = ""
    """NATS credentials file (JWT and seed), instead of user and password."""
    tls_ca: str = ""
    """PEM file of the authority that signed the server's certificate; switches TLS on."""
    tls_cert: str = ""
    """PEM file of our certificate, where the server wants one."""
    tls_key: str = ""
    """PEM file of its key."""
    connect_timeout_s: float = 10.0
    """How long the server may take to be there at start."""
    outbound_bytes: int = 32 << 20
    """Bound of what waits to be sent, while the server is away or slow."""
    pending_messages: int = 65_536
    """Bound of what has arrived and is not handled, per subscription; beyond it messages are lost and counted."""
    pending_bytes: int = 64 << 20
    """The same in bytes."""


class _Leaf(msgspec.Struct, frozen=True):
    """One setting: its place in the struct and its type."""

    path: tuple[str, ...]
    type: Any

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def env(self) -> str:
        return "_".join(self.path).upper()

    @property
    def option(self) -> str:
        return "-".join(self.path).replace("_", "-")


def read_secret(path: Path) -> Secret:
    """Return the secret in a file, without the line break at its end. Raises `UserError`."""
    try:
        return Secret(path.read_text().strip("\r\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the secret in {path}: {error}") from error


def load(
    kind: type[S],
    *,
    prefix: str,
    argv: Sequence[str] = (),
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> S:
    """Return the settings; later sources win: defaults, TOML file, `<prefix>…` variables, `--…` options. Raises `UserError`."""
    leaves = _with_files(_leaves(kind, ()))
    variables = {
        k: v for k, v in (os.environ if env is None else env).items() if k.startswith(prefix)
    }
    options = dict(_options(argv, leaves))
    by_variable = variables.pop(prefix + CONFIG.upper(), None)
    chosen = options.pop(CONFIG, by_variable)
    file = Path(chosen) if chosen else file
    tree: dict[str, Any] = {}
    if file is not None:
        _merge_file(tree, file, leaves)
    by_env = {prefix + leaf.env: leaf for leaf in leaves}
    for name, text in sorted(variables.items()):
        leaf = by_env.get(name)
        if leaf is None:
            raise _unknown("environment", name, by_env)
        _put(tree, leaf, _parse(leaf, text, f"environment, {name}"))
    by_option = {leaf.option: leaf for leaf in leaves}
    for name, text in options.items():
        leaf = by_option[name]
        _put(tree, leaf, _parse(leaf, text, f"command line, --{name}"))
    return _build(kind, tree, base=None, path=())


def _leaves(kind: type[msgspec.Struct], path: tuple[str, ...]) -> Iterator[_Leaf]:
    for field in msgspec.structs.fields(kind):
        here = (*path, field.name)
        if _is_group(field.type):
            yield from _leaves(field.type, here)
        else:
            yield _Leaf(here, field.type)


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _build(kind: type[S], tree: dict[str, Any], *, base: S | None, path: tuple[str, ...]) -> S:
    """Return the struct of checked values; what is not given is taken from `base`, else from the type's defaults."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        here = (*path, field.name)
        default = _default(field) if base is None else getattr(base, field.name)
        if _is_group(field.type):
            group = None if default is msgspec.NODEFAULT else default
            values[field.name] = _build(field.type, tree.get(field.name, {}), base=group, path=here)
        else:
            values[field.name] = tree.get(field.name, default)
        if values[field.name] is msgspec.NODEFAULT:
            raise UserError(
                f"the setting {'.'.join(here)} has no value and no default", hint="set it"
            )
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:  # from the struct's own checks
        raise UserError(f"settings{' of ' if path else ''}{'.'.join(path)}: {error}") from error


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _with_files(leaves: Iterator[_Leaf]) -> list[_Leaf]:
    """Return the leaves, with a `…_file` beside each secret."""
    known = list(leaves)
    files = [
        _Leaf((*leaf.path[:-1], leaf.path[-1] + FILE_SUFFIX), Path)
        for leaf in known
        if leaf.type is Secret
    ]
    return known + files


def _options(argv: Sequence[str], leaves: list[_Leaf]) -> Iterator[tuple[str, str]]:
    known: dict[str, Any] = {leaf.option: leaf.type for leaf in leaves}
    known[CONFIG] = str
    words = list(argv)
    while words:
        word = words.pop(0)
        name, has_value, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in known:
            raise _unknown("command line", word.partition("=")[0], [f"--{n}" for n in known])
        if not has_value:
            if known[name] is bool and (not words or words[0].startswith("--")):
                value = "true"
            elif words:
                value = words.pop(0)
            else:
                raise UserError(f"command line: --{name} needs a value")
        yield name, value


def _merge_file(tree: dict[str, Any], file: Path, leaves: list[_Leaf]) -> None:
    try:
        content = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the settings in {file}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file} is no TOML: {error}") from error
    by_path = {leaf.path: leaf for leaf in leaves}
    groups = {leaf.path[:n] for leaf in leaves for n in range(1, len(leaf.path))}

    def walk(table: dict[str, Any], path: tuple[str, ...]) -> None:
        for key, value in table.items():
            here = (*path, key)
            if here in groups and isinstance(value, dict):
                walk(value, here)
            elif here in by_path:
                leaf = by_path[here]
                _put(tree, leaf, _convert(leaf, value, f"{file}, {leaf.dotted}", strict=True))
            else:
                raise _unknown(str(file), ".".join(here), [leaf.dotted for leaf in leaves])

    walk(content, ())


def _parse(leaf: _Leaf, text: str, source: str) -> Any:
    """Return the value that a text stands for. Lists and tables are JSON; a list may also be words with commas between them."""
    kind = get_origin(leaf.type) or leaf.type
    if kind not in (list, tuple, dict, set, frozenset):
        return _convert(leaf, text, source, strict=False)
    if kind is not dict and not text.startswith("["):
        words = [word.strip() for word in text.split(",") if word.strip()]
        return _convert(leaf, words, source, strict=False)
    try:
        return _convert(leaf, msgspec.json.decode(text), source, strict=True)
    except msgspec.DecodeError as error:
        raise UserError(f"{source}: {text!r} is no JSON: {error}") from error


def _convert(leaf: _Leaf, value: Any, source: str, *, strict: bool) -> Any:
    try:
        return msgspec.convert(value, leaf.type, strict=strict, dec_hook=_hook)
    except msgspec.ValidationError as error:
        shown = "***" if leaf.type is Secret else repr(value)
        # A text from environment or command line is no mistake by itself: only what was expected is news.
        reason = str(error) if strict else str(error).partition(", got `str`")[0]
        raise UserError(f"{source}: {shown} does not fit: {reason}") from error


def _hook(kind: type, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise msgspec.ValidationError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _put(tree: dict[str, Any], leaf: _Leaf, value: Any) -> None:
    """Set the value at the leaf's place; a secret's file is read here."""
    *groups, name = leaf.path
    for group in groups:
        tree = tree.setdefault(group, {})
    if leaf.type is Path and name.endswith(FILE_SUFFIX) and isinstance(value, Path):
        name, value = name.removesuffix(FILE_SUFFIX), read_secret(value)
    tree[name] = value


def _unknown(source: str, name: str, known: Sequence[str] | Mapping[str, _Leaf]) -> UserError:
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
    return UserError(f"{source}: unknown setting {name}", hint=hint)


def environment() -> dict[str, str]:
    """Return a copy of the environment, for a process that we start."""
    return dict(os.environ)
