"""One event of the log for each call, when it ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import grpc

from logitd.service.calls import CallObserver

if TYPE_CHECKING:
    from logitd.service.calls import CallRecord

_LOG = logging.getLogger(__name__)
# Faults of ours: an operator should look.
_FAULTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


class CallLog(CallObserver):
    """Logs each call when it ends."""

    def ended(self, record: CallRecord) -> None:
        level = logging.ERROR if record.code in _FAULTS else logging.INFO
        if _LOG.isEnabledFor(level):
            _LOG.log(level, "call", extra={"fields": _read_fields(record)})


def _read_fields(record: CallRecord) -> dict[str, object]:
    fields: dict[str, object] = {"method": record.method, "code": record.code.name}
    if record.reason:
        fields["reason"] = record.reason
    return fields | {
        "ms": round(record.seconds * 1000, 3),
        "peer": record.peer_kind,
        "messages_received": record.messages_received,
        "messages_sent": record.messages_sent,
        "bytes_received": record.bytes_received,
        "bytes_sent": record.bytes_sent,
    }
