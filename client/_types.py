"""What a caller passes to the client and gets from it.

Names of profiles, rules and the like are the proto's short names; the enums below are plain strings, so
`"SGLANG"` and `Profile.SGLANG` mean the same. What the server reports is a `str`, for a newer server may know more.
Arrays in results are read-only views of the reply unless a field says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from logitd.client._arrays import check_places

if TYPE_CHECKING:
    import numpy.typing as npt

    from logitd.client._arrays import TokenIds


class Profile(StrEnum):
    """A penalty profile: whose scope, order and arithmetic is used."""

    SGLANG = "SGLANG"
    SGLANG_FUSED = "SGLANG_FUSED"
    VLLM = "VLLM"
    HF = "HF"


class BeamRule(StrEnum):
    """Whose beam search is reproduced."""

    HF = "HF"
    VLLM = "VLLM"
    VLLM_PROMPT_LENGTH = "VLLM_PROMPT_LENGTH"


class EarlyStopping(StrEnum):
    """When a search by the HF rule stops."""

    FALSE = "FALSE"
    TRUE = "TRUE"
    NEVER = "NEVER"


class FinishReason(StrEnum):
    """Why a hypothesis or a search ended."""

    EOS = "EOS"
    LENGTH = "LENGTH"
    REQUESTED = "REQUESTED"
    NO_CANDIDATE = "NO_CANDIDATE"
    RULE = "RULE"


@dataclass(frozen=True, slots=True)
class Penalties:
    """The penalties of one sequence; None is neutral."""

    repetition_penalty: float | None = None
    """Above 1 lowers ids that were seen; finite and > 0, at most 2 in the SGLANG profiles."""
    frequency_penalty: float | None = None
    """Subtracted for every occurrence in the output; within [-2, 2] except in the HF profile."""
    presence_penalty: float | None = None
    """Subtracted once for every id of the output; within [-2, 2] except in the HF profile."""
    min_new_tokens: int | None = None
    """EOS and stop ids are banned while fewer tokens than this were output."""


@dataclass(frozen=True, slots=True)
class Beam:
    """The beam search of one sequence."""

    width: int
    """Live beams; the HF rule needs at least 2."""
    length_penalty: float | None = None
    """Exponent of the length in the score; None: 1."""
    early_stopping: EarlyStopping | str | bool | None = None
    """Only with the HF rule; None: FALSE."""
    num_return_sequences: int | None = None
    """Hypotheses returned, best first; None: `width`."""
    return_token_log_probs: bool = False
    """Whether hypotheses carry the log-probability of each token."""


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """A finished hypothesis; N output tokens."""

    token_ids: npt.NDArray[np.int32]
    """[N], a final EOS included."""
    score: float
    """The normalised score by which the rule ranks."""
    running_sum: float
    """The running sum with penalties, as the engine has it."""
    log_prob_sum: float
    """The plain sum of log-probabilities."""
    token_log_probs: npt.NDArray[np.float64]
    """[N] where the search returns them, else [0]."""
    finish_reason: str | None
    """EOS, LENGTH or REQUESTED."""
    parent_chain: npt.NDArray[np.int32]
    """[N]: the row, within its search, that each token continued."""
    is_filler: bool
    """The rule took this candidate only to fill the width."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveBeam:
    """A live beam of a search under way; N output tokens."""

    token_ids: npt.NDArray[np.int32]
    """[N]."""
    score: float
    """The running score as the rule has it, penalties included."""
    log_prob_sum: float
    """The plain sum of log-probabilities."""
    token_log_probs: npt.NDArray[np.float64]
    """[N] where the search returns them, else [0]."""
    parent_chain: npt.NDArray[np.int32]
    """[N]: the row, within its search, that each token continued."""


@dataclass(frozen=True, slots=True, eq=False)
class BeamSearchState:
    """A search under way: what a rebuild needs to go on with it."""

    live_beams: tuple[LiveBeam, ...]
    """In row order."""
    pool: tuple[Hypothesis, ...] = ()
    """The finished hypotheses in the pool's order."""
    checkpoint: bytes = b""
    """The rule's private state, opaque."""


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One sequence of a batch."""

    prompt_token_ids: TokenIds = ()
    """Needed by the profiles that count the prompt, and by VLLM_PROMPT_LENGTH."""
    penalties: Penalties | None = None
    """None: all neutral."""
    max_new_tokens: int | None = None
    """The greatest number of output tokens; None: the server's default. Beam batches must set it."""
    eos_token_ids: TokenIds = ()
    """The ids that end the output: banned below min_new_tokens, and they finish a beam."""
    stop_token_ids: TokenIds = ()
    """Further ids that are banned below min_new_tokens; they never finish a beam."""
    output_token_ids: TokenIds = ()
    """The output so far, to rebuild a penalty batch."""
    beam: Beam | None = None
    """Required in beam batches, refused in others."""
    beams: BeamSearchState | None = None
    """A search under way, to rebuild a beam batch."""
    sequence_id: str = ""
    """Unique within the batch; empty: the position in the batch, as a decimal number."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Where a sequence's rows stand in the batch."""

    sequence_id: str
    first_row: int
    row_count: int


RowLayouts: TypeAlias = tuple[RowLayout, ...]
"""The rows of every sequence, in batch order."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchInfo:
    """A batch and its effective configuration, every default filled in."""

    batch_id: str
    uid: bytes
    """One life of the id."""
    revision: int
    """Committed mutations."""
    kind: str | None
    """PENALTY or BEAM."""
    vocab_size: int
    profile: str | None
    beam_rule: str | None
    """None in a penalty batch."""
    allow_penalty_extension: bool
    rows: tuple[RowLayout, ...]
    sequences: tuple[Sequence, ...]
    """Token ids and beams only in a full view; none in a list."""
    idle_timeout_seconds: float
    """Seconds without a message after which the batch expires."""


@dataclass(frozen=True, slots=True, eq=False)
class SparsePatch:
    """What an Apply changes: N entries over R rows."""

    row_splits: npt.NDArray[np.int32]
    """[R + 1]: entries row_splits[i] to row_splits[i + 1] - 1 belong to row i."""
    token_ids: npt.NDArray[np.int32]
    """[N], ascending within a row."""
    values: npt.NDArray[Any]
    """[N], the new values in the type of the logits."""

    @property
    def row_indices(self) -> npt.NDArray[np.int64]:
        """[N]: the row of each entry."""
        return np.repeat(np.arange(len(self.row_splits) - 1), np.diff(self.row_splits))

    def apply_to_inplace(self, logits: npt.NDArray[Any]) -> None:
        """Writes the new values into `logits`, [R, columns] of the type that was sent."""
        check_places(logits, len(self.row_splits) - 1, self.token_ids)
        if logits.dtype.newbyteorder("=") != self.values.dtype:
            raise TypeError(f"logits must be {self.values.dtype}, got {logits.dtype}")
        logits[self.row_indices, self.token_ids] = self.values


@dataclass(frozen=True, slots=True, eq=False)
class SearchStep:
    """What happened to one search in a step; it has L rows in the next one."""

    sequence_id: str
    is_done: bool
    """It ended, and has left the batch."""
    finish_reason: str | None
    """Why it ended; None while it goes on."""
    entered: tuple[Hypothesis, ...]
    """The hypotheses that entered the pool in this step."""
    hypotheses: tuple[Hypothesis, ...]
    """When it ended: the best ones, best first."""
    checkpoint: bytes
    """The rule's private state after the step, for a rebuild."""
    log_prob_sums: npt.NDArray[np.float64]
    """[L]: the plain sums of log-probabilities of its next rows."""
    token_log_probs: npt.NDArray[np.float64]
    """[L] where the search returns them, else [0]: of the tokens appended in this step."""


@dataclass(frozen=True, slots=True, eq=False)
class BeamStep:
    """The next beams: L rows."""

    parent_rows: npt.NDArray[np.int32]
    """[L]: the row of this step that each row of the next one continues. Gather the cache by it."""
    token_ids: npt.NDArray[np.int32]
    """[L]: what each row of the next step appends."""
    scores: npt.NDArray[np.float64]
    """[L]: the running scores as the rule has them."""
    rows: tuple[RowLayout, ...]
    """The rows of the next step, of the searches that go on."""
    searches: tuple[SearchStep, ...]
    """Each search that took part, in the batch's order before the step."""

    @property
    def is_done(self) -> bool:
        """No search goes on."""
        return len(self.token_ids) == 0


@dataclass(frozen=True, slots=True)
class Limits:
    """A server's limits."""

    max_message_bytes: int
    max_batches: int
    max_rows_per_batch: int
    max_vocab_size: int
    max_new_tokens: int
    default_max_new_tokens: int
    max_prompt_tokens: int
    max_stop_token_ids: int
    idle_timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a server does."""

    version: str
    instance_id: str
    """New with each start of the server."""
    data_types: tuple[str, ...]
    devices: tuple[str, ...]
    profiles: tuple[str, ...]
    beam_rules: tuple[str, ...]
    apply_forms: tuple[str, ...]
    features: tuple[str, ...]
    limits: Limits
