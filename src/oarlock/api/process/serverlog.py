"""The server's own log: one JSON object a line in `server.log` of its home, at most `FILES` times `FILE_BYTES`.

This log has the events of the server. The event log has the events of jobs.
"""

from __future__ import annotations

import logging
import logging.handlers
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

FILE_BYTES = 10 << 20
FILES = 4
_QUIET = ("uvicorn", "httpx", "asyncio", "alembic", "sqlalchemy", "websockets", "fsspec")


def open_log(path: Path, level: str = "INFO") -> None:
    """Send all log lines of this process to `path`."""
    before: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_json),
        ],
    )
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, delay=True)
    handler.setFormatter(render)
    path.touch(mode=0o600, exist_ok=True)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def report(event: str, facts: Mapping[str, object]) -> None:
    """Write one line. An `error` among the facts is written with its traceback, at the level of an error."""
    log = structlog.get_logger("oarlock.api")
    error = facts.get("error")
    if isinstance(error, BaseException):
        rest = {name: value for name, value in facts.items() if name != "error"}
        log.error(event, exc_info=(type(error), error, error.__traceback__), **rest)
    else:
        log.info(event, **facts)


def _json(line: Any, **_: Any) -> str:
    return msgspec.json.encode(line, enc_hook=str).decode()
