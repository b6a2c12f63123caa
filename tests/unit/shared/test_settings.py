"""Settings: which source wins, and what is said about every mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from shared.errors import UserError
from shared.settings import NatsSettings, Secret, load, read_secret

PREFIX = "HEADRACE_TEST_"


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    size_bytes: int = 10
    ratio: float = 0.5


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "x"
    mode: Literal["fast", "safe"] = "safe"
    on: bool = False
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    limit: int | None = None
    words: tuple[str, ...] = ()
    table: dict[str, object] = {}
    file: Path = Path("/nowhere")
    key: Secret = Secret()
    inner: Inner = Inner(ratio=0.25)
    nats: NatsSettings = NatsSettings(user="test")


def read(*argv: str, env: dict[str, str] | None = None, file: Path | None = None) -> Outer:
    return load(Outer, prefix=PREFIX, argv=argv, env=env or {}, file=file)


def toml(folder: Path, text: str) -> Path:
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_without_sources_the_defaults_hold():
    assert Outer() == read()


def test_later_sources_win(tmp_path: Path):
    file = toml(tmp_path, 'name = "file"\nmode = "fast"\n[inner]\nsize_bytes = 1\nratio = 1\n')
    env = {"HEADRACE_TEST_NAME": "env", "HEADRACE_TEST_INNER_SIZE_BYTES": "2", "OTHER": "x"}

    got = read("--name", "argv", env=env, file=file)

    assert Outer(name="argv", mode="fast", inner=Inner(size_bytes=2, ratio=1.0)) == got


def test_a_group_keeps_the_defaults_of_its_owner():
    got = read("--inner-size-bytes", "3", "--nats-url", "nats://h:1")

    assert Inner(size_bytes=3, ratio=0.25) == got.inner
    assert NatsSettings(user="test", url="nats://h:1") == got.nats


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--port", "80"], "port", 80),
        (["--port=80"], "port", 80),
        (["--limit", "7"], "limit", 7),
        (["--limit", "null"], "limit", None),
        (["--on"], "on", True),
        (["--on", "--name", "y"], "on", True),
        (["--on", "false"], "on", False),
        (["--on=1"], "on", True),
        (["--words", "a, b"], "words", ("a", "b")),
        (["--words", '["a,b"]'], "words", ("a,b",)),
        (["--table", '{"a": 1}'], "table", {"a": 1}),
        (["--name", "[not json"], "name", "[not json"),
        (["--name="], "name", ""),
        (["--file", "/srv/x"], "file", Path("/srv/x")),
    ],
)
def test_texts_become_values(argv: list[str], field: str, value: object):
    assert value == getattr(read(*argv), field)


def test_a_config_file_can_be_named(tmp_path: Path):
    first = toml(tmp_path, 'name = "first"')
    second = tmp_path / "second.toml"
    second.write_text('name = "second"')

    assert "first" == read("--config", str(first)).name
    assert "second" == read(env={"HEADRACE_TEST_CONFIG": str(second)}).name
    assert "first" == read("--config", str(first), env={"HEADRACE_TEST_CONFIG": str(second)}).name


@pytest.mark.parametrize(
    ("argv", "env", "message", "hint"),
    [
        (["--nmae", "x"], {}, "command line: unknown setting --nmae", "did you mean --name?"),
        (["name"], {}, "command line: unknown setting name", ""),
        (["--zzzzzz"], {}, "unknown setting --zzzzzz", "known: --config, --file"),
        (["--name"], {}, "command line: --name needs a value", ""),
        (
            [],
            {"HEADRACE_TEST_PROT": "1"},
            "environment: unknown setting HEADRACE_TEST_PROT",
            "HEADRACE_TEST_PORT",
        ),
        (
            [],
            {"HEADRACE_TEST_NAT_URL": "1"},
            "unknown setting HEADRACE_TEST_NAT_URL",
            "HEADRACE_TEST_NATS_URL",
        ),
        (["--port", "many"], {}, "command line, --port: 'many' does not fit: Expected `int`$", ""),
        (["--port", "70000"], {}, "--port: '70000' does not fit: Expected `int` <= 65535", ""),
        (
            [],
            {"HEADRACE_TEST_ON": "maybe"},
            "environment, HEADRACE_TEST_ON: 'maybe' does not fit: Expected `bool`$",
            "",
        ),
        (["--mode", "quick"], {}, "--mode: 'quick' does not fit: Invalid enum value 'quick'", ""),
        (["--table", "{x"], {}, r"--table: '\{x' is no JSON", ""),
    ],
)
def test_mistakes_are_named_with_their_source(
    argv: list[str], env: dict[str, str], message: str, hint: str
):
    with pytest.raises(UserError, match=message) as mistake:
        read(*argv, env=env)

    assert hint in mistake.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nam = 1", r"settings\.toml: unknown setting nam$"),
        ("[inner]\nsize = 1", r"settings\.toml: unknown setting inner\.size$"),
        ("[innner]\nsize_bytes = 1", r"settings\.toml: unknown setting innner$"),
        ("name = 1", r"settings\.toml, name: 1 does not fit: Expected `str`, got `int`"),
        ("inner = 1", r"settings\.toml: unknown setting inner$"),
        ("port = '80'", r"settings\.toml, port: '80' does not fit: Expected `int`, got `str`"),
        ("name = ", r"settings\.toml is no TOML: "),
    ],
)
def test_mistakes_in_a_file_are_named_with_file_and_key(tmp_path: Path, text: str, message: str):
    with pytest.raises(UserError, match=message):
        read(file=toml(tmp_path, text))


def test_a_missing_file_is_named():
    with pytest.raises(UserError, match=r"cannot read the settings in /nowhere/x\.toml"):
        read(file=Path("/nowhere/x.toml"))


def test_a_secret_is_never_shown(tmp_path: Path):
    file = tmp_path / "key"
    file.write_text("hush\n")

    for got in (
        read("--key", "hush"),
        read("--key-file", str(file)),
        read(env={"HEADRACE_TEST_KEY": "hush"}),
        read(env={"HEADRACE_TEST_KEY_FILE": str(file)}),
        read(file=toml(tmp_path, f'key_file = "{file}"')),
        read(file=toml(tmp_path, 'key = "hush"')),
    ):
        assert "hush" == got.key.reveal()
        assert "hush" not in repr(got)
        assert "hush" not in f"{got.key} {got.key!r} {got.key!s}"


def test_a_wrong_secret_is_not_shown_either(tmp_path: Path):
    with pytest.raises(UserError, match=r"key: \*\*\* does not fit") as mistake:
        read(file=toml(tmp_path, "key = 12345"))

    assert "12345" not in str(mistake.value)


def test_an_unreadable_secret_file_is_named():
    with pytest.raises(UserError, match="cannot read the secret in /nowhere/key"):
        read("--key-file", "/nowhere/key")


def test_line_breaks_at_the_end_of_a_secret_file_do_not_count(tmp_path: Path):
    (tmp_path / "key").write_text("a b \r\n")

    assert Secret("a b ") == read_secret(tmp_path / "key")


def test_secrets_compare_and_tell_whether_they_are_set():
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert 1 == len({Secret("a"), Secret("a")})
    assert Secret("a")
    assert not Secret()
    assert "(none)" == repr(Secret())


class Needy(msgspec.Struct, frozen=True, kw_only=True):
    must: int


def test_a_setting_without_value_and_default_is_named():
    with pytest.raises(UserError, match="setting must has no value"):
        load(Needy, prefix=PREFIX, env={})

    assert Needy(must=1) == load(Needy, prefix=PREFIX, env={}, argv=["--must", "1"])


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    low: int = 1
    high: int = 2

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")


class Checking(msgspec.Struct, frozen=True, kw_only=True):
    bounds: Checked = Checked()


def test_a_structs_own_check_is_told():
    with pytest.raises(UserError, match=r"settings of bounds: low \(5\) is above high \(2\)"):
        load(Checking, prefix=PREFIX, env={}, argv=["--bounds-low", "5"])
