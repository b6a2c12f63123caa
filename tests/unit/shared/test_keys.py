"""Only who shows a key of the file is let in, and a gateway without keys does not face a network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.errors import UserError
from shared.keys import (
    KeyFile,
    add_key,
    check_exposure,
    is_loopback,
    key_line,
    new_key,
    parse_keys,
)


def test_a_key_opens_for_its_tenant_only():
    alice, bob = new_key(), new_key()
    ring = parse_keys(f"{key_line('alice', alice)}\n{key_line('bob', bob)}", source="f")

    assert ("alice", "bob", None) == (ring.tenant(alice), ring.tenant(bob), ring.tenant(alice[:-1]))


def test_a_tenant_may_have_two_keys():
    first, second = new_key(), new_key()
    ring = parse_keys(f"{key_line('a', first)}\n{key_line('a', second)}", source="f")

    assert ("a", "a") == (ring.tenant(first), ring.tenant(second))


def test_the_file_does_not_hold_the_key():
    key = new_key()

    assert key not in key_line("a", key)
    assert key.removeprefix("hr-") not in key_line("a", key)


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "alice plain-key",
        "alice sha256:zz",
        "alice sha256:abcd",
        f"a/b sha256:{'0' * 64}",
        f"{'a' * 65} sha256:{'0' * 64}",
        f"a sha256:{'0' * 64}\nb sha256:{'0' * 64}",
    ],
)
def test_a_broken_file_is_refused_with_its_line(text):
    with pytest.raises(UserError, match=r"keys\.txt, line [12]"):
        parse_keys(text, source="keys.txt")


def test_comments_and_empty_lines_are_skipped():
    ring = parse_keys(f"# ours\n\n{key_line('a', 'k')}  # since May\n", source="f")

    assert "a" == ring.tenant("k")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic k", "k", "Bearer x"])
def test_other_headers_open_nothing(tmp_path, header):
    path = tmp_path / "keys"
    path.write_text(key_line("a", "k"))

    assert KeyFile(path).tenant(header) is None


@pytest.mark.parametrize("header", ["Bearer k", "bearer k", "Bearer  k "])
def test_the_scheme_is_read_leniently(tmp_path, header):
    path = tmp_path / "keys"
    path.write_text(key_line("a", "k"))

    assert "a" == KeyFile(path).tenant(header)


def test_without_a_file_everybody_is_anonymous():
    assert "anonymous" == KeyFile(None).tenant(None)


def test_each_tenant_has_a_salt_that_a_second_key_leaves_as_it_is():
    first = parse_keys(f"{key_line('a', 'k')}\n{key_line('b', 'l')}\n", source="f")
    more = parse_keys(
        f"{key_line('a', 'k')}\n{key_line('b', 'l')}\n{key_line('a', 'new')}\n", source="f"
    )

    assert first.salt("a") == more.salt("a") != first.salt("b")
    assert 32 == len(first.salt("a"))


def test_a_salt_tells_neither_key_nor_digest_and_depends_on_both_key_and_name():
    line = key_line("a", "k")
    salts = {
        parse_keys(text, source="f").salt(name)
        for text, name in (
            (line, "a"),
            (key_line("a", "other"), "a"),
            (key_line("b", "k"), "b"),
        )
    }

    assert 3 == len(salts)
    assert not any(salt in line for salt in salts)


def test_without_keys_there_is_one_salt_for_all(tmp_path):
    path = tmp_path / "keys"
    path.write_text(key_line("a", "k"))

    assert "" == KeyFile(None).salt("anonymous") == KeyFile(path).salt("gone")
    assert KeyFile(path).salt("a")


def test_a_change_of_the_file_takes_effect(tmp_path):
    path = tmp_path / "keys"
    path.write_text(key_line("a", "k"))
    file = KeyFile(path)
    assert not file.reload_if_changed()

    path.write_text(key_line("bb", "other"))

    assert file.reload_if_changed()
    assert (None, "bb") == (file.tenant("Bearer k"), file.tenant("Bearer other"))


def test_a_broken_change_leaves_the_old_keys_in_force_and_is_told_once(tmp_path):
    path = tmp_path / "keys"
    path.write_text(key_line("a", "k"))
    file = KeyFile(path)
    path.write_text("nonsense")
    os.utime(path, (1, 1))

    with pytest.raises(UserError):
        file.reload_if_changed()

    assert not file.reload_if_changed()
    assert "a" == file.tenant("Bearer k")


def test_a_missing_file_is_told():
    with pytest.raises(UserError, match="cannot read"):
        KeyFile(Path("/nonexistent/keys"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_keys(host):
    assert is_loopback(host)
    check_exposure(host, has_keys=False, insecure_no_auth=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "", "gateway.example"])  # noqa: S104
def test_a_network_without_keys_is_refused_unless_it_is_meant(host):
    with pytest.raises(UserError, match="API keys") as caught:
        check_exposure(host, has_keys=False, insecure_no_auth=False)

    assert "insecure_no_auth" in caught.value.hint
    check_exposure(host, has_keys=True, insecure_no_auth=False)
    check_exposure(host, has_keys=False, insecure_no_auth=True)


def test_an_added_key_opens_the_door_and_the_file_does_not_hold_it(tmp_path):
    path = tmp_path / "keys"

    first, second = add_key(path, tenant="ada"), add_key(path, tenant="bob")

    ring = KeyFile(path)
    assert ("ada", "bob") == (ring.tenant(f"Bearer {first}"), ring.tenant(f"Bearer {second}"))
    assert first not in path.read_text()
    assert 0o600 == path.stat().st_mode & 0o777


def test_a_key_is_added_after_a_last_line_without_a_line_break(tmp_path):
    path = tmp_path / "keys"
    first = add_key(path, tenant="ada")
    path.write_text(path.read_text().rstrip("\n"))

    add_key(path, tenant="bob")

    assert "ada" == KeyFile(path).tenant(f"Bearer {first}")
