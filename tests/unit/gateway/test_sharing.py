"""Whose prefixes a request may find."""

from __future__ import annotations

import pytest

from services.gateway.sharing import SharingSettings


@pytest.mark.parametrize(
    ("settings", "service", "salt"),
    [
        (SharingSettings(), "m", "own"),
        (SharingSettings(prefixes="service"), "m", ""),
        (SharingSettings(services=("m",)), "m", ""),
        (SharingSettings(services=("m",)), "other", "own"),
    ],
)
def test_a_service_shares_where_it_says_so(settings, service, salt):
    assert salt == settings.salt("own", service)
