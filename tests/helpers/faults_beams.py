"""A beam batch of a random run beside the library, which steps the same logits in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helpers.faults_caller import Caller, Remembered, check_creation, check_is_gone, misdirect
from helpers.faults_random import (
    EOS,
    SMALL_VOCABULARY,
    draw_arrangement,
    draw_beam_logits,
    draw_pieces,
    draw_search,
    one_in,
    search_message,
)
from helpers.wire import creation, read_doubles, read_ints, tensor
from logitd.sampling import PenaltyOrchestrator
from logitd.sampling.beam import BeamSearch, RequestStart
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from helpers.wire import OpenBatch
    from logitd.sampling.beam import BatchStep, Hypothesis, RequestStep

RULES = {"HF": "HF", "VLLM": "VLLM", "VLLM_PROMPT_LENGTH": "VLLM"}
MAX_SEARCHES = 5


class BeamModel:
    """Every method does one thing to the batch and to the library's search, or sees it refused."""

    kind = "BEAM"

    def __init__(self, caller: Caller, rule: str, name: str) -> None:
        self._caller, self._random, self.rule = caller, caller.random, rule
        drawn = [draw_search(self._random, rule) for _ in range(self._random.randint(1, 3))]
        self.names = [f"{name}-{number}" for number in range(len(drawn))]
        self.search = BeamSearch.start(
            rule,
            SMALL_VOCABULARY,
            [RequestStart(parameters) for parameters, _ in drawn],
            PenaltyOrchestrator.create(RULES[rule], SMALL_VOCABULARY, [row for _, row in drawn]),
            allow_penalty_extension=True,
        )
        self._open([search_message(name, *each) for name, each in zip(self.names, drawn, strict=True)])

    def _open(self, sequences: list[types_pb2.Sequence]) -> None:
        self._creation = creation(
            *sequences,
            vocab_size=SMALL_VOCABULARY,
            kind=types_pb2.BATCH_KIND_BEAM,
            beam_rule=types_pb2.BeamRule.Value(f"BEAM_RULE_{self.rule}"),
            allow_penalty_extension=self.rule != "HF",
        )
        self.live: OpenBatch = self._caller.wire.open(self._creation)
        self.sent = Remembered(self._caller)

    def create_again(self) -> None:
        check_creation(self._caller, self._creation, self.live)

    def step(self) -> None:
        """Whole or in chunks of rows; now and then some of the searches are told to end."""
        finish = [place for place in range(len(self.names)) if one_in(self._random, 12)]
        logits = draw_beam_logits(self._random, self.search.num_rows, SMALL_VOCABULARY)
        messages = self._step_messages(logits, [self.names[place] for place in finish])
        *acknowledgements, reply = self._caller.send("BeamStep", *messages)
        assert all(each.is_chunk_acknowledgement for each in acknowledgements)
        self.search, expected = self.search.step(logits, finish)
        assert_same_step(reply, expected, self.names)
        self.names = [self.names[place] for place in expected.remaining]
        self._commit("BeamStep", messages[-1], reply)

    def leave_a_step_unfinished(self) -> None:
        """Chunks that no last one follows are dropped with their stream."""
        logits = draw_beam_logits(self._random, self.search.num_rows, SMALL_VOCABULARY)
        for message in self._step_messages(logits, [])[:-1]:
            [reply] = self._caller.wire.stream("BeamStep", [message])
            assert (reply.is_chunk_acknowledgement, reply.revision) == (True, self.live.revision)

    def filter(self, fresh: str) -> None:
        arrangement = draw_arrangement(self._random, self.names, MAX_SEARCHES, fresh)
        message = service_pb2.FilterBatchRequest(target=self.live.target())
        for place, name in arrangement:
            message.sequences.add(sequence_id=self.names[place], new_sequence_id=name)
        reply = self._caller.ask("FilterBatch", message)
        self.search = self.search.filter([place for place, _ in arrangement])
        self.names = [name for _, name in arrangement]
        self._take_layout("FilterBatch", message, reply)

    def merge(self, other: BeamModel) -> None:
        """The other batch is gone then."""
        message = service_pb2.MergeBatchesRequest(target=self.live.target(), source=other.live.target(request_id=b""))
        if set(self.names) & set(other.names) or self.rule != other.rule:
            self._caller.refuse("MergeBatches", message, "BATCHES_DIFFER")
            return
        reply = self._caller.ask("MergeBatches", message)
        check_is_gone(self._caller, other.live)
        self.search = self.search.merge(other.search)
        self.names += other.names
        other.names = []
        self._take_layout("MergeBatches", message, reply)

    def retry(self) -> None:
        if (retried := self.sent.retry_last()) is not None:
            _, _, first, again = retried
            assert again == first

    def be_refused(self, others: list[OpenBatch]) -> None:
        """A right message with a wrong name, logits that are none, and calls for batches of the other kind."""
        logits = draw_beam_logits(self._random, self.search.num_rows, SMALL_VOCABULARY)
        message = service_pb2.BeamStepRequest(target=self.live.target(), logits=tensor(logits))
        misdirect(self._caller, self.live, "BeamStep", message, others)
        # Not at an EOS id: where one is banned before the softmax, by the VLLM rules, nobody looks at its logit.
        column = self._random.randrange(EOS + 1, SMALL_VOCABULARY)
        logits[-1, column] = self._random.choice((float("nan"), float("inf")))
        message.logits.CopyFrom(tensor(logits))
        self._caller.refuse("BeamStep", message, "INVALID_LOGITS")
        apply = service_pb2.ApplyRequest(target=self.live.target(), logits=tensor(logits))
        self._caller.refuse("Apply", apply, "WRONG_BATCH_KIND")

    def check_state(self) -> None:
        batch = self.live.describe()
        assert (batch.uid, batch.revision) == (self.live.uid, self.live.revision)
        assert [sequence.sequence_id for sequence in batch.sequences] == self.names
        for index, sequence in enumerate(batch.sequences):
            expected = [beam.token_ids.tolist() for beam in self.search.snapshot(index).live_beams]
            assert [read_ints(beam.token_ids) for beam in sequence.beams.live_beams] == expected

    def rebuild(self) -> None:
        """Lost and created anew from what GetBatch gave, as a caller has it from its replies."""
        sequences = list(self.live.describe().sequences)
        self.delete()
        self._open(sequences)

    def delete(self) -> None:
        request = service_pb2.DeleteBatchRequest(batch_id=self.live.batch_id, uid=self.live.uid)
        self._caller.ask("DeleteBatch", request)
        self._caller.refuse("DeleteBatch", request, "BATCH_NOT_FOUND")

    def _step_messages(self, logits: Any, finish: list[str]) -> list[service_pb2.BeamStepRequest]:
        target = self.live.target()
        messages = []
        for first_row, count in draw_pieces(self._random, len(logits)):
            part = logits[first_row : first_row + count]
            in_region = one_in(self._random, 4)
            values = self._caller.region.write(part) if in_region and count == len(logits) else tensor(part)
            messages.append(
                service_pb2.BeamStepRequest(target=target, first_row=first_row, logits=values, has_more_chunks=True)
            )
        messages[-1].has_more_chunks = False
        messages[-1].finish_sequence_ids.extend(finish)
        return messages

    def _commit(self, method: str, message: Any, reply: Any) -> None:
        assert reply.revision == self.live.revision + 1
        self.live.revision = reply.revision
        self.sent.add(method, message, reply)

    def _take_layout(self, method: str, message: Any, reply: Any) -> None:
        assert layout_of(reply) == expected_layout(self.names, self.search.row_splits.tolist())
        self._commit(method, message, reply)


def layout_of(reply: Any) -> list[tuple[str, int, int]]:
    return [(row.sequence_id, row.first_row, row.row_count) for row in reply.rows]


def expected_layout(names: list[str], splits: list[int]) -> list[tuple[str, int, int]]:
    return [(name, splits[place], splits[place + 1] - splits[place]) for place, name in enumerate(names)]


def assert_same_step(reply: Any, step: BatchStep, names: list[str]) -> None:
    """A reply says what the library's step says, to the bit."""
    assert read_ints(reply.parent_rows) == step.parent_rows.tolist()
    assert read_ints(reply.token_ids) == step.token_ids.tolist()
    assert reply.scores == step.scores.tobytes()
    assert layout_of(reply) == expected_layout([names[place] for place in step.remaining], step.row_splits.tolist())
    told = [_told_search(search) for search in reply.searches]
    assert told == [_library_search(names[request.index], request) for request in step.requests]


def _told_search(search: service_pb2.SearchStep) -> tuple[Any, ...]:
    reason = types_pb2.FinishReason.Name(search.finish_reason).removeprefix("FINISH_REASON_")
    entered, best = ([_told_hypothesis(each) for each in given] for given in (search.entered, search.hypotheses))
    head = (search.sequence_id, search.is_done, reason, search.checkpoint, search.log_prob_sums)
    return (*head, entered, best)


def _library_search(name: str, request: RequestStep) -> tuple[Any, ...]:
    reason = "UNSPECIFIED" if request.finish_reason is None else request.finish_reason.name
    entered, best = ([_library_hypothesis(each) for each in given] for given in (request.entered, request.hypotheses))
    head = (name, request.is_done, reason, request.checkpoint, request.log_prob_sums.tobytes())
    return (*head, entered, best)


def _told_hypothesis(told: types_pb2.Hypothesis) -> tuple[Any, ...]:
    reason = types_pb2.FinishReason.Name(told.finish_reason).removeprefix("FINISH_REASON_")
    lists = (read_ints(told.token_ids), read_ints(told.parent_chain), read_doubles(told.token_log_probs))
    return (*lists, told.score, told.running_sum, told.log_prob_sum, reason, told.is_filler)


def _library_hypothesis(given: Hypothesis) -> tuple[Any, ...]:
    log_probs = [] if given.token_log_probs is None else given.token_log_probs.tolist()
    lists = (given.token_ids.tolist(), given.parent_chain.tolist(), log_probs)
    return (*lists, given.score, given.running_sum, given.log_prob_sum, given.finish_reason.name, given.is_filler)
