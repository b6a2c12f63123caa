"""The figures of the gateway that are read when somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.gateway.metrics import Reading

if TYPE_CHECKING:
    from services.gateway.http.server import HttpServer
    from services.gateway.service import GatewayService

CONNECTION_STAGES = ("idle", "reading", "waiting", "streaming", "closing")


def gateway_readings(service: GatewayService) -> list[Reading]:
    """Return the figures of calls, gates, streams and engines."""
    table, lookout = service.table, service.lookout
    ledgers = service.ledgers

    return [
        Reading("open_calls", "Requests under way.", lambda: len(service.calls)),
        Reading("open_streams", "Streams at engines.", lambda: len(table)),
        Reading("engines_ready", "Engines that may get work.", lookout.ready),
        Reading("gateways", "Gateways alive, this one included.", lambda: lookout.gateways),
        Reading("deltas", "Deltas received.", lambda: service.repair.deltas, is_total=True),
        Reading("resends", "Resends asked for.", lambda: service.repair.resends, is_total=True),
        Reading("gaps", "Gaps seen in streams.", lambda: table.gaps, is_total=True),
        Reading("duplicates", "Deltas seen twice.", lambda: table.duplicates, is_total=True),
        Reading("strays", "Deltas nobody waits for.", lambda: table.strays, is_total=True),
        Reading(
            "warm_pieces", "Pieces of prompts known at engines.", lambda: service.warmth.pieces
        ),
        Reading(
            "warmth_asked",
            "Times that an engine was asked for all that it holds.",
            lambda: service.warmth.asked,
            is_total=True,
        ),
        Reading("ledgers", "Entries of ended requests.", lambda: ledgers.made, is_total=True),
        Reading(
            "ledgers_dropped",
            "Entries that found no room while the bus was away, or that it did not take.",
            lambda: ledgers.dropped,
            is_total=True,
        ),
    ]


def http_readings(server: HttpServer) -> list[Reading]:
    """Return the figures of the HTTP server."""

    def connections(stage: str) -> Callable[[], float]:
        return lambda: server.stages()[stage]

    return [
        *(
            Reading(
                "http_connections",
                "Open connections by stage.",
                connections(stage),
                labels={"stage": stage},
            )
            for stage in CONNECTION_STAGES
        ),
        Reading(
            "http_accepted", "Connections taken.", lambda: server.counts.connections, is_total=True
        ),
        Reading(
            "http_turned_away",
            "Connections over the limit.",
            lambda: server.counts.connections_refused,
            is_total=True,
        ),
        Reading("http_requests", "Requests read.", lambda: server.counts.requests, is_total=True),
        Reading(
            "http_disconnects",
            "Clients that left early.",
            lambda: server.counts.disconnects,
            is_total=True,
        ),
        Reading(
            "http_slow_clients",
            "Clients cut because they did not read.",
            lambda: server.counts.slow_clients,
            is_total=True,
        ),
    ]
