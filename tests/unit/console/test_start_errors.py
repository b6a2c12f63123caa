"""What keeps a platform from starting is said before anything is started, and in the words of the process that failed."""

from __future__ import annotations

import pytest

from shared import machine
from shared.errors import UserError
from shared.models.fetch import check_servable
from shared.processes.child import log_size, log_tail


def test_a_file_that_an_option_names_must_be_readable(tmp_path):
    machine.check_file("", option="--api-keys", hint="")
    (tmp_path / "keys").write_text("")
    machine.check_file(str(tmp_path / "keys"), option="--api-keys", hint="")
    with pytest.raises(UserError, match=r"--api-keys .*absent cannot be read: No such file"):
        machine.check_file(str(tmp_path / "absent"), option="--api-keys", hint="make one")


def test_a_model_that_is_not_there_is_said_at_once_and_one_that_can_be_made_is_not(tmp_path):
    check_servable("smollm2", tmp_path)
    with pytest.raises(UserError, match="no model"):
        check_servable("nonesuch", tmp_path)


def test_the_last_words_are_those_of_the_last_life(tmp_path):
    log = tmp_path / "engine-0.log"
    assert 0 == log_size(log)
    assert not log_tail(log)
    log.write_text("an old fault\n")
    since = log_size(log)
    assert not log_tail(log, since=since)
    with log.open("a") as file:
        file.write("a new fault\n")

    assert "a new fault" == log_tail(log, since=since)
    assert "an old fault\na new fault" == log_tail(log)
