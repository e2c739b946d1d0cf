"""The log: one line an event on stderr; it never says what a caller has sent."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from logitd.service.config import ServerConfig


def set_up_logging(config: ServerConfig) -> None:
    """Log to stderr as configured, for the whole process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)


class EventFormatter(logging.Formatter):
    """Reads what an event says: its message, and the dict in its attribute `fields`.

    Of an exception the frames and the type are told, not its text: that may quote what a caller has sent.
    """

    def read(self, record: logging.LogRecord) -> dict[str, object]:
        """The event's parts in order."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
        return event | getattr(record, "fields", {})

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        parts, error = [], ei[1]
        while error is not None:
            parts.append("".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__)
            error = error.__cause__ or error.__context__
        return "\nwhich came of\n".join(parts)


class JsonFormatter(EventFormatter):
    """An event as a JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        event = self.read(record)
        if record.exc_info:
            event["trace"] = self.formatException(record.exc_info)
        return json.dumps(event)


class TextFormatter(EventFormatter):
    """An event for a person: its time, level and message, then what else it says as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        event = self.read(record)
        line = f"{event.pop('time')} {event.pop('level')} {event.pop('event')}"
        line += "".join(f" {name}={value}" for name, value in event.items())
        return line if not record.exc_info else f"{line}\n{self.formatException(record.exc_info)}"
