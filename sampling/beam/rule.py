"""The interface of a beam rule: whose search is reproduced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from logitd.sampling.beam.chain import Link, unroll
from logitd.sampling.beam.hypothesis import FinishReason, Hypothesis
from logitd.sampling.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitd.sampling.beam.log_probs import RowLogProbs
    from logitd.sampling.beam.parameters import BeamParameters
    from logitd.sampling.beam.pool import Pool
    from logitd.sampling.orchestrator import PenaltyOrchestrator


class Beam(NamedTuple):
    """A live beam: its last token (None before the first), the rule's running sum, the plain sum."""

    tip: Link | None
    score: float
    log_prob_sum: float


@dataclass(frozen=True, slots=True)
class RequestState:
    """One request's search, immutable.

    Attributes
    ----------
    length : int
        Generated tokens of every live beam.
    beams : tuple of Beam
        The live beams in row order; a new request has one that stands for all.
    """

    parameters: BeamParameters
    length: int
    beams: tuple[Beam, ...]
    pool: Pool

    def extend(self, row: int, token_id: int, score: float, log_prob: float) -> Beam:
        """The beam of `row` with one more token."""
        beam = self.beams[row]
        return Beam(Link(beam.tip, token_id, row, log_prob), score, beam.log_prob_sum + log_prob)


class Outcome(NamedTuple):
    """What a step made of a request: the next live beams, the pool, and why the search ended, if it did."""

    beams: tuple[Beam, ...]
    pool: Pool
    finish_reason: FinishReason | None


class BeamRule(ABC):
    """One engine's search over the live rows of one request at a time; has no state.

    Attributes
    ----------
    name : str
        As users ask for it.
    penalty_profile : str
        The profile that the rule implies.
    checkpoint_tag : int
        Tells its checkpoints from another rule's.
    min_width : int
        The least `width`.
    """

    name: ClassVar[str]
    penalty_profile: ClassVar[str]
    checkpoint_tag: ClassVar[int]
    min_width: ClassVar[int]

    def validate(
        self,
        parameters: BeamParameters,
        vocab_size: int,
        *,
        has_penalties: bool = False,
        allow_penalty_extension: bool = False,
        min_new_tokens: int = 0,
    ) -> None:
        """Raise `ParameterError` for the first parameter that the rule refuses.

        Parameters
        ----------
        has_penalties : bool
            Whether the request asks for any penalty, `min_new_tokens` included.
        allow_penalty_extension : bool
            Whether the caller asked by name for penalties that the engine's own search has not.
        min_new_tokens : int
            At most `max_new_tokens`.
        """
        parameters.validate(vocab_size, self.min_width)
        if min_new_tokens > parameters.max_new_tokens:
            rule = f"must be at most max_new_tokens ({parameters.max_new_tokens})"
            raise ParameterError("min_new_tokens", rule, min_new_tokens)
        self._validate_own(parameters, vocab_size, has_penalties, allow_penalty_extension)

    @abstractmethod
    def _validate_own(
        self, parameters: BeamParameters, vocab_size: int, has_penalties: bool, allow_penalty_extension: bool
    ) -> None:
        """Raise `ParameterError` for what this rule alone refuses."""

    @abstractmethod
    def log_probs(self, logits: torch.Tensor, penalties: PenaltyOrchestrator | None) -> RowLogProbs:
        """The log-probabilities that the rule sums.

        Parameters
        ----------
        logits : torch.Tensor, float32 [R, V]
        penalties : PenaltyOrchestrator or None
            Over the same rows.

        Raises
        ------
        LogitsError
            A logit, after penalties, is NaN or +inf.
        """

    @abstractmethod
    def start_pool(self, parameters: BeamParameters, hypotheses: tuple[Hypothesis, ...]) -> Pool:
        """The pool that holds these hypotheses, at most `width`, in this order."""

    @abstractmethod
    def is_pool(self, parameters: BeamParameters, pool: Pool) -> bool:
        """Whether the rule's searches have such pools."""

    @abstractmethod
    def step(self, states: Sequence[RequestState], rows: RowLogProbs) -> list[Outcome]:
        """One step of each request; their rows are the beams of the first, then those of the second, and so on."""

    @abstractmethod
    def join_live(self, state: RequestState, reason: FinishReason) -> Pool:
        """The pool after the live beams, as they are, joined it as they would at a length stop."""

    def validate_row_count(self, parameters: BeamParameters, row_count: int) -> None:
        """Raise `ParameterError` unless a search that has begun can have so many live beams."""
        if not 1 <= row_count <= parameters.width:
            raise ParameterError("live_beams", f"must be 1 to width ({parameters.width}) beams", row_count)


def make_hypothesis(
    parameters: BeamParameters, beam: Beam, score: float, running_sum: float, reason: FinishReason
) -> Hypothesis:
    """The hypothesis that a beam ends as."""
    chain = unroll(beam.tip)
    return Hypothesis(
        token_ids=chain.token_ids,
        score=score,
        running_sum=running_sum,
        log_prob_sum=beam.log_prob_sum,
        finish_reason=reason,
        parent_chain=chain.parent_rows,
        token_log_probs=chain.log_probs if parameters.return_token_log_probs else None,
    )
