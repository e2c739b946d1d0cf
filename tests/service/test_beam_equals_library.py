"""Searches through the server are the library's, bit by bit, whole or in chunks of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.wire import Failed, OpenBatch, Wire, creation, ints, read_doubles, read_ints, tensor
from helpers.wire_batches import partitions, penalties_of
from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart
from logitd.sampling.beam import BeamParameters, BeamSearch, EarlyStopping, RequestStart
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from logitd.sampling.beam import BatchStep, Hypothesis, RequestStep

RULES = ("HF", "VLLM", "VLLM_PROMPT_LENGTH")
PROFILE_OF_RULE = {"HF": "HF", "VLLM": "VLLM", "VLLM_PROMPT_LENGTH": "VLLM"}
VOCAB_SIZE = 12
quick = settings(
    derandomize=True, deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)


@dataclass(frozen=True)
class Search:
    """One request: the library's parameters, its penalties and its prompt."""

    parameters: BeamParameters
    penalties: PenaltyParameters
    prompt: tuple[int, ...]

    def message(self, sequence_id: str) -> types_pb2.Sequence:
        p = self.parameters
        beam = types_pb2.BeamParameters(
            width=p.width,
            length_penalty=p.length_penalty,
            early_stopping=types_pb2.EarlyStopping.Value(f"EARLY_STOPPING_{p.early_stopping.name}"),
            num_return_sequences=p.num_return_sequences,
            return_token_log_probs=p.return_token_log_probs,
        )
        return types_pb2.Sequence(
            sequence_id=sequence_id,
            prompt_token_ids=ints(*self.prompt),
            penalties=penalties_of(self.penalties),
            max_new_tokens=p.max_new_tokens,
            eos_token_ids=p.eos_token_ids,
            beam=beam,
        )


@dataclass(frozen=True)
class Searches:
    """A batch, and where its logits come from."""

    rule: str
    searches: tuple[Search, ...]
    dtype: torch.dtype
    padding: int
    seed: int
    multiple: float
    share_banned: float

    def start(self) -> BeamSearch:
        starts = [RequestStart(search.parameters) for search in self.searches]
        rows = [RowStart(search.penalties, search.prompt) for search in self.searches]
        penalties = None
        if any(search.penalties.is_required for search in self.searches):
            penalties = PenaltyOrchestrator.create(PROFILE_OF_RULE[self.rule], VOCAB_SIZE, rows)
        return BeamSearch.start(self.rule, VOCAB_SIZE, starts, penalties, allow_penalty_extension=True)

    def creation(self) -> service_pb2.CreateBatchRequest:
        sequences = [search.message(f"search {number}") for number, search in enumerate(self.searches)]
        return creation(
            *sequences,
            vocab_size=VOCAB_SIZE,
            beam_rule=types_pb2.BeamRule.Value(f"BEAM_RULE_{self.rule}"),
            allow_penalty_extension=self.rule != "HF",
        )

    def logits(self, num_rows: int, step: int) -> torch.Tensor:
        """[num_rows, V + padding], rounded so that values tie; what is banned is -inf; NaN in the padding."""
        random = np.random.default_rng([self.seed, step])
        values = np.round(random.normal(0, 3, (num_rows, VOCAB_SIZE)) / self.multiple) * self.multiple
        values[random.random(values.shape) < self.share_banned] = -np.inf
        padded = np.pad(values, ((0, 0), (0, self.padding)), constant_values=np.nan)
        return torch.from_numpy(padded.astype(np.float32)).to(self.dtype)


def eos_lists() -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3).map(tuple)


@st.composite
def search_requests(draw: st.DrawFn, rule: str) -> Search:
    width = draw(st.integers(2, 4))
    modes = list(EarlyStopping) if rule == "HF" else [EarlyStopping.FALSE]
    eos_token_ids = draw(eos_lists())
    max_new_tokens = draw(st.integers(1, 8))
    parameters = BeamParameters(
        width=width,
        max_new_tokens=max_new_tokens,
        length_penalty=draw(st.sampled_from((1.0, 0.0, 2.0, -1.0, 0.7))),
        early_stopping=draw(st.sampled_from(modes)),
        eos_token_ids=eos_token_ids,
        num_return_sequences=draw(st.integers(1, width)),
        prompt_length=3,
        return_token_log_probs=draw(st.booleans()),
    )
    asked = PenaltyParameters(
        repetition_penalty=draw(st.sampled_from((1.0, 1.3, 0.8))),
        frequency_penalty=draw(st.sampled_from((0.0, 0.4, -0.3))),
        presence_penalty=draw(st.sampled_from((0.0, 0.25))),
        min_new_tokens=draw(st.integers(0, max_new_tokens)),
        stop_token_ids=eos_token_ids,
    )
    return Search(
        parameters, draw(st.sampled_from((PenaltyParameters(stop_token_ids=eos_token_ids), asked))), (0, 1, 1)
    )


@st.composite
def batches_of_searches(draw: st.DrawFn, rule: str) -> Searches:
    return Searches(
        rule=rule,
        searches=tuple(draw(st.lists(search_requests(rule), min_size=1, max_size=3))),
        dtype=draw(st.sampled_from((torch.float32, torch.float16, torch.bfloat16))),
        padding=draw(st.sampled_from((0, 0, 5))),
        seed=draw(st.integers(0, 2**32 - 1)),
        multiple=draw(st.sampled_from((0.001, 0.5))),
        share_banned=draw(st.sampled_from((0.0, 0.2, 0.9))),
    )


@quick
@given(st.data())
@pytest.mark.parametrize("rule", RULES)
def test_searches_are_the_librarys_to_their_end(wire: Wire, rule: str, data: st.DataObject) -> None:
    batch = data.draw(batches_of_searches(rule))
    search = batch.start()
    names = [f"search {number}" for number in range(len(batch.searches))]
    with wire.opened(batch.creation()) as live:
        for number in range(20):
            if not names:
                break
            finish = [place for place in range(len(names)) if number and data.draw(st.integers(0, 9)) == 0]
            logits = batch.logits(search.num_rows, number)
            search, step = search.step(logits, finish)
            reply = live.beam_step(logits, *[names[place] for place in finish])
            check_step(reply, step, names)
            names = [names[place] for place in step.remaining]
        assert names == []
        assert list(live.describe().sequences) == []


def check_step(reply: service_pb2.BeamStepResponse, step: BatchStep, names: list[str]) -> None:
    assert not reply.is_chunk_acknowledgement
    assert read_ints(reply.parent_rows) == step.parent_rows.tolist()
    assert read_ints(reply.token_ids) == step.token_ids.tolist()
    assert reply.scores == step.scores.tobytes()
    splits = step.row_splits.tolist()
    assert [(row.sequence_id, row.first_row, row.row_count) for row in reply.rows] == [
        (names[place], splits[number], splits[number + 1] - splits[number])
        for number, place in enumerate(step.remaining)
    ]
    assert [search.sequence_id for search in reply.searches] == [names[request.index] for request in step.requests]
    for search, request in zip(reply.searches, step.requests, strict=True):
        check_search(search, request)


def check_search(search: service_pb2.SearchStep, request: RequestStep) -> None:
    assert search.is_done == request.is_done
    reason = request.finish_reason.name if request.finish_reason else "UNSPECIFIED"
    assert types_pb2.FinishReason.Name(search.finish_reason) == f"FINISH_REASON_{reason}"
    assert search.checkpoint == request.checkpoint
    assert search.log_prob_sums == request.log_prob_sums.tobytes()
    assert search.token_log_probs in (request.token_log_probs.tobytes(), b"")
    for messages, hypotheses in ((search.entered, request.entered), (search.hypotheses, request.hypotheses)):
        assert len(messages) == len(hypotheses)
        for message, hypothesis in zip(messages, hypotheses, strict=True):
            check_hypothesis(message, hypothesis)


def check_hypothesis(message: types_pb2.Hypothesis, hypothesis: Hypothesis) -> None:
    assert read_ints(message.token_ids) == hypothesis.token_ids.tolist()
    assert read_ints(message.parent_chain) == hypothesis.parent_chain.tolist()
    sums = (message.score, message.running_sum, message.log_prob_sum)
    assert sums == (hypothesis.score, hypothesis.running_sum, hypothesis.log_prob_sum)
    assert types_pb2.FinishReason.Name(message.finish_reason) == f"FINISH_REASON_{hypothesis.finish_reason.name}"
    assert message.is_filler == hypothesis.is_filler
    log_probs = [] if hypothesis.token_log_probs is None else hypothesis.token_log_probs.tolist()
    assert read_doubles(message.token_log_probs) == log_probs


@quick
@given(st.data())
@pytest.mark.parametrize("rule", RULES)
def test_chunks_of_any_rows_in_any_order_are_the_whole_step(wire: Wire, rule: str, data: st.DataObject) -> None:
    batch = replace(data.draw(batches_of_searches(rule)), share_banned=0.0)
    num_rows = batch.start().num_rows
    with wire.opened(batch.creation()) as chunked, wire.opened(batch.creation()) as whole:
        conversation = wire.converse("BeamStep")
        for number in range(3):
            if num_rows == 0:
                break
            logits = batch.logits(num_rows, number)
            requests = chunk_requests(chunked, logits, data.draw(partitions(num_rows)))
            replies = [conversation.ask(request) for request in requests]
            assert all(r.is_chunk_acknowledgement and r.revision == number for r in replies[:-1])
            assert replies[-1].SerializeToString() == whole.beam_step(logits).SerializeToString()
            chunked.revision = replies[-1].revision
            num_rows = sum(row.row_count for row in replies[-1].rows)
        assert chunked.describe().sequences == whole.describe().sequences
        conversation.finish()


def chunk_requests(
    live: OpenBatch, logits: torch.Tensor, pieces: list[tuple[int, int]]
) -> list[service_pb2.BeamStepRequest]:
    target = live.target()
    return [
        service_pb2.BeamStepRequest(
            target=target,
            first_row=first_row,
            logits=tensor(logits[first_row : first_row + count]),
            has_more_chunks=number < len(pieces) - 1,
        )
        for number, (first_row, count) in enumerate(pieces)
    ]


@pytest.fixture
def live(wire: Wire):
    search = Search(BeamParameters(width=3, max_new_tokens=5), PenaltyParameters(), ())
    batch = Searches("HF", (search, search), torch.float32, 0, 1, 0.01, 0.0)
    with wire.opened(batch.creation()) as live:
        live.beam_step(batch.logits(2, 0))
        yield live


LOGITS = torch.arange(6 * VOCAB_SIZE, dtype=torch.float32).remainder(7).view(6, VOCAB_SIZE)


def test_chunks_are_dropped_with_their_stream(wire: Wire, live: OpenBatch) -> None:
    first, second = chunk_requests(live, LOGITS, [(0, 4), (4, 2)])
    before = live.describe()
    assert [reply.revision for reply in wire.stream("BeamStep", [first])] == [1]
    assert live.describe() == before
    with pytest.raises(Failed) as caught:
        wire.call("BeamStep", second)
    assert caught.value.failure.field == "logits.shape[0]"
    assert "cover all 6 live rows once, got '2 rows'" in caught.value.failure.message
    assert live.describe() == before
    assert wire.stream("BeamStep", [first, second])[-1].revision == 2


@pytest.mark.parametrize("first_row", [0, 1, 3])
def test_overlapping_chunks_are_refused(wire: Wire, live: OpenBatch, first_row: int) -> None:
    requests = chunk_requests(live, LOGITS, [(0, 4), (first_row, 2)])
    before = live.describe()
    with pytest.raises(Failed) as caught:
        wire.stream("BeamStep", requests)
    assert len(caught.value.replies) == 1
    assert caught.value.failure.field == "first_row"
    assert f"rows that no chunk before it had, got {first_row}" in caught.value.failure.message
    assert live.describe() == before


@pytest.mark.parametrize(
    "odd", [LOGITS[4:].half(), torch.nn.functional.pad(LOGITS[4:], (0, 1))], ids=["type", "columns"]
)
def test_chunks_of_another_type_or_width_are_refused(wire: Wire, live: OpenBatch, odd: torch.Tensor) -> None:
    first, second = chunk_requests(live, LOGITS, [(0, 4), (4, 2)])
    second.logits.CopyFrom(tensor(odd))
    with pytest.raises(Failed) as caught:
        wire.stream("BeamStep", [first, second])
    assert caught.value.failure.field == "logits"
    assert "type and columns of the chunks before it" in caught.value.failure.message


def test_chunks_that_were_never_completed_do_not_mix_with_the_next_step(wire: Wire, live: OpenBatch) -> None:
    stale = chunk_requests(live, LOGITS.flip(0), [(0, 4), (4, 2)])[0]
    first, second = chunk_requests(live, LOGITS, [(4, 2), (0, 4)])
    reply = wire.stream("BeamStep", [stale, first, second])[-1]
    assert reply.revision == 2
    assert read_ints(reply.parent_rows) == whole_parents()


def whole_parents() -> list[int]:
    search = Search(BeamParameters(width=3, max_new_tokens=5), PenaltyParameters(), ())
    batch = Searches("HF", (search, search), torch.float32, 0, 1, 0.01, 0.0)
    following, _ = batch.start().step(batch.logits(2, 0))
    return following.step(LOGITS)[1].parent_rows.tolist()


def test_chunks_of_two_streams_do_not_mix(wire: Wire, live: OpenBatch) -> None:
    """Whoever completes the step first has it; the other learns that the batch went on."""
    ours, theirs = wire.converse("BeamStep"), wire.converse("BeamStep")
    our_requests = chunk_requests(live, LOGITS, [(0, 3), (3, 3)])
    their_requests = chunk_requests(live, LOGITS.flip(0), [(3, 3), (0, 3)])
    assert ours.ask(our_requests[0]).is_chunk_acknowledgement
    assert theirs.ask(their_requests[0]).is_chunk_acknowledgement
    assert ours.ask(our_requests[1]).revision == 2
    with pytest.raises(Failed) as caught:
        theirs.ask(their_requests[1])
    assert caught.value.failure.reason == "REVISION_MISMATCH"
    ours.finish()


def test_retry_of_a_chunked_step_is_acknowledged_and_answered_from_the_store(wire: Wire, live: OpenBatch) -> None:
    requests = chunk_requests(live, LOGITS, [(0, 2), (2, 2), (4, 2)])
    replies = wire.stream("BeamStep", requests)
    again = wire.stream("BeamStep", requests)
    assert again[-1].SerializeToString() == replies[-1].SerializeToString()
    assert all(reply.is_chunk_acknowledgement for reply in again[:-1])
    assert live.describe().revision == 2


def test_searches_named_in_the_last_chunk_end_before_the_step(wire: Wire, live: OpenBatch) -> None:
    requests = chunk_requests(live, LOGITS, [(0, 2), (2, 4)])
    requests[-1].finish_sequence_ids.append("search 0")
    reply = wire.stream("BeamStep", requests)[-1]
    assert [(s.is_done, s.finish_reason) for s in reply.searches] == [
        (True, types_pb2.FINISH_REASON_REQUESTED),
        (False, types_pb2.FINISH_REASON_UNSPECIFIED),
    ]
    assert [(row.sequence_id, row.first_row, row.row_count) for row in reply.rows] == [("search 1", 0, 3)]
    assert min(read_ints(reply.parent_rows)) >= 3


def test_searches_may_all_end_without_logits_or_with_them(wire: Wire) -> None:
    search = Search(BeamParameters(width=2, max_new_tokens=5), PenaltyParameters(presence_penalty=1.0), ())
    batch = Searches("HF", (search, search), torch.float32, 0, 1, 0.01, 0.0)
    replies = []
    for logits in (torch.empty(0), batch.logits(4, 1)):
        with wire.opened(batch.creation()) as live:
            live.beam_step(batch.logits(2, 0))
            replies.append(live.beam_step(logits, "search 1", "search 0"))
            assert live.describe().rows == []
    assert replies[0].searches == replies[1].searches
    assert [len(search.hypotheses) for search in replies[0].searches] == [2, 2]


def test_batch_without_searches_takes_no_more_logits(wire: Wire, live: OpenBatch) -> None:
    live.beam_step(torch.empty(0), "search 0", "search 1")
    with pytest.raises(Failed) as caught:
        live.beam_step(LOGITS)
    assert caught.value.failure.field == "first_row"
    assert live.describe().revision == 2
