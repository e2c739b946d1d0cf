"""Beam search over a batch of requests, immutable: a step returns the next search and leaves this one as it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from logitd.sampling.beam.chain import unroll
from logitd.sampling.beam.errors import LogitsError
from logitd.sampling.beam.hypothesis import FinishReason
from logitd.sampling.beam.results import BatchStep, RequestStep, ended, going_on
from logitd.sampling.beam.rule import Outcome, RequestState
from logitd.sampling.beam.rules import find_rule
from logitd.sampling.beam.start import RequestStart, begin, describe
from logitd.sampling.errors import ParameterError
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from logitd.sampling.beam.log_probs import RowLogProbs
    from logitd.sampling.beam.rule import BeamRule

_Item = TypeVar("_Item", bound=np.generic)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class BeamSearch:
    """Requests of one rule and one vocabulary that search independently of each other.

    Rows are the live beams of the requests in batch order; a new request has one row, whatever its width.

    Attributes
    ----------
    penalties : PenaltyOrchestrator or None
        Penalties in the loop, over the same rows.
    """

    rule: BeamRule
    vocab_size: int
    requests: tuple[RequestState, ...]
    penalties: PenaltyOrchestrator | None = None

    @classmethod
    def start(
        cls,
        rule_name: str,
        vocab_size: int,
        requests: Sequence[RequestStart],
        penalties: PenaltyOrchestrator | None = None,
        *,
        allow_penalty_extension: bool = False,
    ) -> BeamSearch:
        """A search whose requests begin anew or where they were left.

        Parameters
        ----------
        rule_name : str
            HF, VLLM or VLLM_PROMPT_LENGTH.
        penalties : PenaltyOrchestrator or None
            One row for each row of the search; its outputs so far are those of the live beams.
        allow_penalty_extension : bool
            Whether penalties are wanted under a rule whose engine has none.

        Raises
        ------
        ParameterError
            Fields are named from ``requests[i]`` on.
        """
        rule = find_rule(rule_name)
        if vocab_size < 1:
            raise ParameterError("vocab_size", "must be at least 1", vocab_size)
        has_penalties = penalties is not None
        states = []
        for index, start in enumerate(requests):
            try:
                rule.validate(
                    start.parameters,
                    vocab_size,
                    has_penalties=has_penalties,
                    allow_penalty_extension=allow_penalty_extension,
                )
                states.append(begin(rule, vocab_size, start))
            except ParameterError as error:
                raise error.within(f"requests[{index}]") from error
        search = cls(rule, vocab_size, tuple(states), penalties)
        if penalties is not None and penalties.num_rows != search.num_rows:
            raise ParameterError("penalties", f"must have {search.num_rows} rows", f"{penalties.num_rows} rows")
        return search

    @cached_property
    def row_splits(self) -> NDArray[np.int64]:
        """Int64 [M + 1]: rows [row_splits[i], row_splits[i + 1]) are request i's."""
        return np.cumsum([0, *(len(request.beams) for request in self.requests)], dtype=np.int64)

    @property
    def num_rows(self) -> int:
        """Rows that the next step's logits have."""
        return int(self.row_splits[-1])

    def step(self, logits: torch.Tensor, finish: Collection[int] = ()) -> tuple[BeamSearch, BatchStep]:
        """The search after one step, and what to tell the decoder.

        Parameters
        ----------
        logits : torch.Tensor, float32, float16 or bfloat16 [R, W]
            Of the next token, a row for each live beam; columns from `vocab_size` on are padding and ignored.
            They are not changed.
        finish : collection of int
            Requests that end before the step with their best hypotheses; their rows are ignored.

        Raises
        ------
        LogitsError
            Wrong shape or dtype; NaN or +inf in a live row.
        ParameterError
            `finish` names a request that is not there.
        """
        # logits: [R, W]
        self._check_shape(logits)
        staying = self._without(finish)
        kept = self._rows_of(staying)
        current = self if len(staying) == len(self.requests) else self.filter(staying)
        live_logits = logits if current is self else logits[torch.from_numpy(kept).to(logits.device)]
        rows = current._log_probs(live_logits, kept)
        outcomes = self.rule.step(current.requests, rows)
        return current._advance(outcomes, staying, kept, self._finished(finish))

    def finish(self, indices: Collection[int]) -> tuple[BeamSearch, BatchStep]:
        """The search without these requests, which answer with their best hypotheses.

        Live beams join the pool as they are at a length stop. A request that never stepped has none. In the result
        `parent_rows` are the rows that stay, nothing is appended, and `requests` are those that ended.

        Raises
        ------
        ParameterError
            A request is not there.
        """
        staying = self._without(indices)
        search = self.filter(staying)
        scores = [beam.score for request in search.requests for beam in request.beams]
        return search, BatchStep(
            parent_rows=self._rows_of(staying).astype(np.int32),
            token_ids=np.empty(0, np.int32),
            scores=np.array(scores, np.float64),
            row_splits=search.row_splits,
            remaining=tuple(staying),
            requests=tuple(self._finished(indices)),
        )

    def filter(self, indices: Sequence[int]) -> BeamSearch:
        """The search of these requests, in this order; naming one twice forks it."""
        for index in indices:
            self._check_index(index)
        penalties = None if self.penalties is None else self.penalties.filter(self._rows_of(indices))
        requests = tuple(self.requests[index] for index in indices)
        return BeamSearch(self.rule, self.vocab_size, requests, penalties)

    def merge(self, other: BeamSearch) -> BeamSearch:
        """The requests of this search and then the other's; a side without penalties gets neutral ones.

        Raises
        ------
        ParameterError
            Another rule or vocabulary, or penalties of another profile.
        """
        for field, ours, theirs in (
            ("rule", self.rule.name, other.rule.name),
            ("vocab_size", self.vocab_size, other.vocab_size),
        ):
            if ours != theirs:
                raise ParameterError(field, f"must be {ours}, as on the other side", theirs)
        penalties = self._merge_penalties(other)
        return BeamSearch(self.rule, self.vocab_size, self.requests + other.requests, penalties)

    def snapshot(self, index: int) -> RequestStart:
        """All that begins request `index` anew where it is, with the same bits."""
        self._check_index(index)
        return describe(self.rule, self.requests[index])

    def _check_shape(self, logits: torch.Tensor) -> None:
        if logits.dtype not in _DTYPES:
            got = f"{type(logits).__name__} of {logits.dtype}"
            raise LogitsError("must be a tensor of float32, float16 or bfloat16", got)
        rows, width = self.num_rows, self.vocab_size
        if logits.dim() != 2 or logits.shape[0] != rows or logits.shape[1] < width:
            raise LogitsError(f"must be [{rows}, at least {width}]", list(logits.shape))

    def _check_index(self, index: int) -> None:
        if not 0 <= index < len(self.requests):
            raise ParameterError("requests", f"must be named by 0 to {len(self.requests) - 1}", index)

    def _without(self, indices: Collection[int]) -> list[int]:
        for index in indices:
            self._check_index(index)
        return [index for index in range(len(self.requests)) if index not in indices]

    def _rows_of(self, indices: Sequence[int]) -> NDArray[np.int64]:
        splits = self.row_splits.tolist()
        return np.array([row for i in indices for row in range(splits[i], splits[i + 1])], np.int64)

    def _log_probs(self, logits: torch.Tensor, numbers: NDArray[np.int64]) -> RowLogProbs:
        # logits: [R, W] of the live rows, which the step's message numbers `numbers`
        try:
            return self.rule.log_probs(logits[:, : self.vocab_size].to(torch.float32), self.penalties)
        except LogitsError as error:
            row = None if error.row is None else int(numbers[error.row])
            raise LogitsError(error.rule, error.got, row, error.token_id) from error

    def _finished(self, indices: Collection[int]) -> list[RequestStep]:
        return [self._finish_one(index) for index in sorted(set(indices))]

    def _finish_one(self, index: int) -> RequestStep:
        state, reason = self.requests[index], FinishReason.REQUESTED
        pool = self.rule.join_live(state, reason) if state.length else state.pool
        return ended(index, state, Outcome((), pool, reason))

    def _advance(
        self,
        outcomes: list[Outcome],
        numbers: list[int],
        row_numbers: NDArray[np.int64],
        finished: list[RequestStep],
    ) -> tuple[BeamSearch, BatchStep]:
        """Commit outcomes; requests and rows are told to the caller by their numbers before the step."""
        going = [place for place, outcome in enumerate(outcomes) if outcome.finish_reason is None]
        results = [
            going_on(self.rule, number, state, outcome)
            if outcome.finish_reason is None
            else ended(number, state, outcome)
            for number, state, outcome in zip(numbers, self.requests, outcomes, strict=True)
        ]
        live = [results[place] for place in going]
        first_rows = self.row_splits[going]
        parents = _concatenate([r.parents + first for r, first in zip(live, first_rows, strict=True)], np.int64)
        token_ids = _concatenate([r.token_ids for r in live], np.int32)
        search = self._next([self._next_state(place, outcomes[place]) for place in going], parents, token_ids)
        return search, BatchStep(
            parent_rows=row_numbers[parents].astype(np.int32),
            token_ids=token_ids,
            scores=_concatenate([r.scores for r in live], np.float64),
            row_splits=search.row_splits,
            remaining=tuple(numbers[place] for place in going),
            requests=tuple(sorted(results + finished, key=lambda result: result.index)),
        )

    def _next_state(self, place: int, outcome: Outcome) -> RequestState:
        state = self.requests[place]
        return RequestState(state.parameters, state.length + 1, outcome.beams, outcome.pool)

    def _next(
        self, requests: list[RequestState], parents: NDArray[np.int64], token_ids: NDArray[np.int32]
    ) -> BeamSearch:
        penalties = self.penalties
        if penalties is not None:
            # Each row takes its parent's history before its own token is added to it.
            row_splits = np.arange(len(token_ids) + 1, dtype=np.int64)
            penalties = penalties.filter(parents).accumulate(token_ids, row_splits)
        return BeamSearch(self.rule, self.vocab_size, tuple(requests), penalties)

    def _merge_penalties(self, other: BeamSearch) -> PenaltyOrchestrator | None:
        if self.penalties is None and other.penalties is None:
            return None
        model = self.penalties or other.penalties
        assert model is not None
        return self._penalties_like(model).merge(other._penalties_like(model))

    def _penalties_like(self, model: PenaltyOrchestrator) -> PenaltyOrchestrator:
        if self.penalties is not None:
            return self.penalties
        outputs = [unroll(beam.tip).token_ids for request in self.requests for beam in request.beams]
        neutral = [RowStart(output_token_ids=token_ids) for token_ids in outputs]
        return PenaltyOrchestrator.create(model.profile.name, self.vocab_size, neutral)


def _concatenate(arrays: list[NDArray[_Item]], dtype: type[_Item]) -> NDArray[_Item]:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.empty(0, dtype)
