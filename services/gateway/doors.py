"""The doors as the service runs them: the HTTP server with its API, the NATS API with its announcement."""

from __future__ import annotations

from functools import partial

from services.gateway.call import ApiError
from services.gateway.http.parser import RequestRefused
from services.gateway.http.server import HttpServer
from services.gateway.http.settings import HttpSettings
from services.gateway.http.shell import Asked, Farewell
from services.gateway.http_api import HttpApi
from services.gateway.nats_announce import Announcement
from services.gateway.nats_api import NatsApi
from services.gateway.openai.limits import RequestLimits
from services.gateway.openai.refusal import body_too_large

IDLE_CLOSE_S = 1.0
"""How long connections get, after the last call has ended, to be closed politely."""
ANY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound


def api_error(limits: RequestLimits, status: int, message: str) -> ApiError:
    """Return OpenAI's error for what the HTTP server refuses by itself."""
    if status == 413:  # noqa: PLR2004
        return body_too_large(limits)
    is_clients = status < 500  # noqa: PLR2004
    return ApiError(status, message, kind="invalid_request_error" if is_clients else "server_error")


def api_error_body(limits: RequestLimits, status: int, message: str) -> tuple[str, bytes]:
    """Return content type and body of that error."""
    return "application/json", api_error(limits, status, message).body()


class HttpDoor:
    """See `Door`."""

    def __init__(self, settings: HttpSettings, api: HttpApi, limits: RequestLimits) -> None:
        self._settings = settings
        self._limits = limits
        self._api = api
        self.server = HttpServer(
            settings,
            api.handle,
            max_body_bytes=limits.max_body_bytes,
            error_body=partial(api_error_body, limits),
            on_unserved=self._on_unserved,
        )
        self.url = ""

    def _on_unserved(self, asked: Asked, refusal: RequestRefused | None) -> Farewell | None:
        error = None
        if refusal is not None:
            error = api_error(self._limits, refusal.status, str(refusal))
        return self._api.unserved(asked, error)

    async def start(self) -> None:
        """See `Door`."""
        await self.server.start()
        scheme = "https" if self._settings.tls_cert else "http"
        host = "127.0.0.1" if self._settings.host in ANY_ADDRESS else self._settings.host
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{shown}:{self.server.port}"

    async def stop_taking(self) -> None:
        """See `Door`. Requests on open connections are refused by the reception from now on."""
        self.server.close_listeners()

    async def stop(self) -> None:
        """See `Door`."""
        await self.server.drain(IDLE_CLOSE_S)

    def tick(self) -> None:
        """See `Door`."""
        self._api.tick()


class NatsDoor:
    """See `Door`."""

    def __init__(self, api: NatsApi, announcement: Announcement) -> None:
        self._api = api
        self._announcement = announcement
        self.url = ""

    async def start(self) -> None:
        """See `Door`."""
        await self._api.start()
        await self._announcement.start()

    async def stop_taking(self) -> None:
        """See `Door`. Other gateways of the queue group get what comes from now on."""
        await self._announcement.stop()
        await self._api.stop_taking()

    async def stop(self) -> None:
        """See `Door`."""
        await self._api.stop()

    def tick(self) -> None:
        """See `Door`."""
        self._api.tick()
