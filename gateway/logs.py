"""Logs are events with fields: readable on a terminal, one JSON object a line elsewhere."""

from __future__ import annotations

import logging
import secrets
import sys
from contextvars import ContextVar
from itertools import count

import structlog

# Which request something is logged for, by its number in this process. Text is made of it only
# where it is logged: nearly every request comes and goes without a word.
_request: ContextVar[int] = ContextVar("request")
_numbers = count(1)
_process = secrets.token_hex(4)


def begin_request() -> None:
    """Whatever is logged from here on, also by tasks that are started, names this request."""
    _request.set(next(_numbers))


def set_up(level: int = logging.INFO) -> None:
    """Sends what the gateway and its libraries log to standard error."""
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    shared: list[structlog.types.Processor] = [
        with_request,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("uvicorn.error", "alembic", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def with_request(
    logger: object, name: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    """Adds which request an event belongs to."""
    number = _request.get(0)
    if number:
        event["request"] = f"{_process}-{number}"
    return event
