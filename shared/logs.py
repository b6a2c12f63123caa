"""Structured logs to stderr: event names with key-values, JSON or console. Configured in `__main__` only.

Libraries' records (stdlib logging) come out the same way. A `Secret` shows as `***` since its `repr` says so.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal

import msgspec

from shared.imports import without

with without("rich"):  # coloured tracebacks for terminals
    import structlog
    from structlog.typing import Processor

Level = Literal["debug", "info", "warning", "error"]


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a process logs."""

    level: Level = "info"
    """Least severe records that are written."""
    format: Literal["auto", "json", "console"] = "auto"
    """`auto`: console on a terminal, else JSON."""


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return the logger of a part, by a short name of the part."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(part=name)
    return logger


def configure(settings: LogSettings, *, service: str) -> None:
    """Send this process's records to stderr, each with the service's name. A later call replaces an earlier one."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]

    def add_service(
        _: object, __: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        event["service"] = service
        return event

    stamps: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        add_service,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render = _renderer(settings)
    structlog.configure(
        processors=[*stamps, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*stamps, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()  # noqa: TID251 - this module is what others must use
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))


def _renderer(settings: LogSettings) -> list[Processor]:
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    if console:
        plain = structlog.dev.plain_traceback
        colors = sys.stderr.isatty()
        return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    # Never the renderers that print local variables: prompts are among them.
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=repr)]
