"""What stops the start of a tracer: settings that cannot be, named in one line."""

from __future__ import annotations

import pytest

from services.tracer.__main__ import main


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--policies", "no-such-file", "cannot read the policies in no-such-file"),
        ("--max-traces-per-s", "0", "max_traces_per_s must be above 0"),
        ("--outbox-batch-bytes", "0", "settings of outbox: batch_bytes must be"),
        ("--otlp-protocol", "udp", "--otlp-protocol: 'udp'"),
    ],
)
def test_a_setting_that_cannot_be_is_named(option, value, told, capsys):
    assert 2 == main([option, value])
    assert told in capsys.readouterr().err
