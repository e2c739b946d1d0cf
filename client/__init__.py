"""The client of logitd: numpy arrays in, processed logits or the next beams out.

    from logitd.client import Client, Penalties, Sequence

    with Client("unix:/run/logitd.sock") as client:
        sequences = [Sequence(penalties=Penalties(repetition_penalty=1.3))]
        with client.create_batch(sequences, vocab_size=32000) as batch:
            token_ids = None
            for _ in range(100):
                logits = batch.apply(model_logits(), token_ids)
                token_ids = logits.argmax(axis=1)

`AsyncClient` is the same for asyncio. Nothing here needs torch; bfloat16 is carried as uint16, see `to_bfloat16`.

Where the server runs on the same machine, `Client.shared_logits` makes memory that both have, and
`PenaltyBatch.apply_shared` and `apply_inplace` send only its name. For logits that stay on an accelerator,
`PenaltyBatch.edits` tells what to do to them there. `BeamBatch.search` runs beam searches to their end. A server that
goes away is waited for, and the batches that it forgot are rebuilt from what this side knows of them; see `Client`.
"""

from __future__ import annotations

from logitd.client._aio import AsyncClient
from logitd.client._aio_batch import AsyncBeamBatch, AsyncPenaltyBatch
from logitd.client._arrays import from_bfloat16, to_bfloat16
from logitd.client._drafts import Drafts
from logitd.client._edits import Edits, EditTable
from logitd.client._exceptions import (
    AlreadyExistsError,
    BatchBusyError,
    BatchClosedError,
    BatchesDifferError,
    BatchNotFoundError,
    BatchStateError,
    ClientClosedError,
    DeadlineExceededError,
    ErrorDetails,
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    LogitdError,
    NotFoundError,
    NotSupportedError,
    ProtocolError,
    RefillNeededError,
    RegionNotFoundError,
    ResourceExhaustedError,
    RevisionMismatchError,
    RpcError,
    SharedLogitsClosedError,
    StepTimeoutError,
    UidMismatchError,
    UnansweredStepError,
    UnavailableError,
    WrongBatchKindError,
)
from logitd.client._shared_logits import AsyncSharedLogits, SharedLogits
from logitd.client._sync import Client
from logitd.client._sync_batch import BeamBatch, PenaltyBatch
from logitd.client._types import (
    BatchInfo,
    Beam,
    BeamRule,
    BeamSearchState,
    BeamStep,
    Capabilities,
    EarlyStopping,
    FinishReason,
    Hypothesis,
    Limits,
    LiveBeam,
    Penalties,
    Profile,
    RowLayout,
    SearchStep,
    Sequence,
    SparsePatch,
)

__all__ = [
    "AlreadyExistsError",
    "AsyncBeamBatch",
    "AsyncClient",
    "AsyncPenaltyBatch",
    "AsyncSharedLogits",
    "BatchBusyError",
    "BatchClosedError",
    "BatchInfo",
    "BatchNotFoundError",
    "BatchStateError",
    "BatchesDifferError",
    "Beam",
    "BeamBatch",
    "BeamRule",
    "BeamSearchState",
    "BeamStep",
    "Capabilities",
    "Client",
    "ClientClosedError",
    "DeadlineExceededError",
    "Drafts",
    "EarlyStopping",
    "EditTable",
    "Edits",
    "ErrorDetails",
    "FailedPreconditionError",
    "FieldViolation",
    "FinishReason",
    "Hypothesis",
    "InvalidArgumentError",
    "Limits",
    "LiveBeam",
    "LogitdError",
    "NotFoundError",
    "NotSupportedError",
    "Penalties",
    "PenaltyBatch",
    "Profile",
    "ProtocolError",
    "RefillNeededError",
    "RegionNotFoundError",
    "ResourceExhaustedError",
    "RevisionMismatchError",
    "RowLayout",
    "RpcError",
    "SearchStep",
    "Sequence",
    "SharedLogits",
    "SharedLogitsClosedError",
    "SparsePatch",
    "StepTimeoutError",
    "UidMismatchError",
    "UnansweredStepError",
    "UnavailableError",
    "WrongBatchKindError",
    "from_bfloat16",
    "to_bfloat16",
]
