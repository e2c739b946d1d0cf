"""FilterBatch and MergeBatches: mutations that are calls of their own. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitd.client import _convert as convert
from logitd.client import _types as types
from logitd.client._messages import parse
from logitd.client._steps import Receipt, Step
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections import abc

    from logitd.client._history import History
    from logitd.client._session import BatchSession
    from logitd.client._steps import Aim


class _LayoutStep(Step[tuple[types.RowLayout, ...]]):
    """The rows of every sequence come back."""

    is_unary = True

    def __init__(self) -> None:
        super().__init__(1, is_mutation=True, target=service_pb2.StepTarget())
        self._rows: tuple[types.RowLayout, ...] = ()

    def _take(self, response: service_pb2.FilterBatchResponse | service_pb2.MergeBatchesResponse) -> Receipt:
        self._check_revision(response.revision, self.revision_after)
        self._rows = convert.rows_from_proto(response.rows)
        return Receipt(response.revision, response.draining, is_commit=True, rows=self._rows)

    def result(self) -> tuple[types.RowLayout, ...]:
        return self._rows


class FilterStep(_LayoutStep):
    """Some sequences stay."""

    method = "FilterBatch"

    def __init__(self, selection: abc.Iterable[str | tuple[str, str]]) -> None:
        super().__init__()
        chosen = [selection] if isinstance(selection, str) else selection
        self._selections = [(item, item) if isinstance(item, str) else item for item in chosen]

    def message(self, index: int) -> bytes:
        sequences = [
            service_pb2.SequenceSelection(sequence_id=old, new_sequence_id="" if new == old else new)
            for old, new in self._selections
        ]
        return service_pb2.FilterBatchRequest(target=self.target, sequences=sequences).SerializeToString()

    def record(self, history: History[Any]) -> None:
        history.filter(self._selections)

    def _read(self, index: int, reply: bytes) -> Receipt:
        return self._take(parse(service_pb2.FilterBatchResponse, reply))


class MergeStep(_LayoutStep):
    """Another batch is appended, and is gone."""

    method = "MergeBatches"

    def __init__(self, source: BatchSession) -> None:
        super().__init__()
        self._source = source
        self.others = (source,)
        self._source_target = service_pb2.StepTarget()

    def aim(self, aim: Aim) -> None:
        if not self.is_aimed:
            self._aim_at_source()
        super().aim(aim)

    def aim_again(self, aim: Aim) -> None:
        super().aim_again(aim)
        self._aim_at_source()

    def message(self, index: int) -> bytes:
        request = service_pb2.MergeBatchesRequest(target=self.target, source=self._source_target)
        return request.SerializeToString()

    def record(self, history: History[Any]) -> None:
        history.merge(self._source.history)

    def _aim_at_source(self) -> None:
        place = self._source.place
        self._source_target = service_pb2.StepTarget(
            batch_id=place.batch_id, uid=place.uid, expected_revision=place.revision
        )

    def _read(self, index: int, reply: bytes) -> Receipt:
        return self._take(parse(service_pb2.MergeBatchesResponse, reply))
