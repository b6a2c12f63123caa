"""A silent gateway is gone; our own deafness is not its silence."""

from __future__ import annotations

from services.engine.gateways import Gateways
from shared.fleet import RETURN_S
from shared.ids import GatewayId

A, B = GatewayId("ga"), GatewayId("gb")


def listen(gateways: Gateways, start_s: float, end_s: float, *, is_listening: bool = True):
    """Tick each 100 ms; return who was found gone, and when."""
    gone = []
    for tick in range(round(start_s * 10), round(end_s * 10) + 1):
        found = gateways.tick(tick / 10, is_listening=is_listening)
        gone += [(name, tick / 10) for name in found]
    return gone


def test_silence_means_gone_once():
    gateways = Gateways(gone_s=2.0)
    gateways.heard(A)

    gone = listen(gateways, 0.0, 10.0)

    assert [A] == [name for name, _ in gone]
    assert 2.0 <= gone[0][1] <= 2.2


def test_any_message_renews():
    gateways = Gateways(gone_s=2.0)
    gateways.heard(A)
    gateways.heard(B)

    listen(gateways, 0.0, 1.5)
    gateways.heard(A)
    gone = listen(gateways, 1.6, 3.0)

    assert [B] == [name for name, _ in gone]


def test_our_own_stall_is_not_silence():
    gateways = Gateways(gone_s=2.0)
    gateways.heard(A)
    listen(gateways, 0.0, 1.0)

    assert [] == gateways.tick(60.0, is_listening=True)
    assert [] == listen(gateways, 60.1, 60.4)
    assert [A] == [name for name, _ in listen(gateways, 60.5, 62.0)]


def test_a_lost_bus_is_not_silence_and_others_get_time_to_come_back():
    gateways = Gateways(gone_s=2.0)
    gateways.heard(A)

    assert [] == listen(gateways, 0.0, 30.0, is_listening=False)
    ((name, at),) = listen(gateways, 30.1, 40.0)

    assert A == name
    assert 30.0 + RETURN_S + 1.9 <= at <= 30.0 + RETURN_S + 2.3


def test_forgets_those_that_are_gone():
    gateways = Gateways(gone_s=2.0)
    for number in range(100):
        gateways.heard(GatewayId(f"g{number}"))

    listen(gateways, 0.0, 3.0)

    assert len(gateways) == 0
