"""What the client keeps of a batch's past, without a server."""

from __future__ import annotations

import numpy as np

from logitd.client import Beam, BeamStep, Hypothesis, Penalties, RowLayout, SearchStep, Sequence
from logitd.client import _messages as messages
from logitd.client._beam_history import BeamHistory
from logitd.client._convert import batch_from_proto, sequence_from_proto
from logitd.client._penalty_history import PenaltyHistory
from logitd.client._steps import write_tokens
from logitd.v1 import service_pb2, types_pb2


def created(kind, sequences, **options):
    request = messages.create_request(kind, sequences, messages.BatchOptions(50, None, "b", None, **options))
    batch = types_pb2.Batch(batch_id="b", profile="PENALTY_PROFILE_HF", sequences=request.sequences)
    for sequence in batch.sequences:
        sequence.max_new_tokens = 100
    return request, batch_from_proto(batch)


def token_update(token_ids, rollback):
    update = service_pb2.TokenUpdate()
    write_tokens(update, token_ids, rollback)
    return update


def hypothesis(score, *token_ids):
    ids = np.array(token_ids, np.int32)
    return Hypothesis(ids, score, score * 2, score * 3, np.empty(0), "EOS", np.zeros_like(ids), False)


def step_of(parents, ids, rows, *, entered=(), checkpoint=b"c", done=(), log_probs=()):
    searches = [
        SearchStep(row.sequence_id, False, None, entered, (), checkpoint, np.zeros(row.row_count), np.array(log_probs))
        for row in rows
    ]
    searches += [SearchStep(name, True, "LENGTH", (), (), b"", np.empty(0), np.empty(0)) for name in done]
    scores = -np.arange(len(ids), dtype=np.float64)
    return BeamStep(np.array(parents), np.array(ids), scores, tuple(rows), tuple(searches))


def test_outputs_are_kept_over_rollback_and_forks():
    given = [Sequence([1], Penalties(2.0), 9, output_token_ids=[7], sequence_id="a"), Sequence(sequence_id="b")]
    history = PenaltyHistory.of(*created("PENALTY", given))
    history.count(token_update([1, 2], None))
    history.count(token_update([[3, 4], []], [1, 1]))
    history.filter([("b", "b"), ("a", "x"), ("a", "a")])
    history.count(token_update([5, 6, 8], None))
    request = history.creation(b"k" * 16)
    sequences = [sequence_from_proto(message) for message in request.sequences]
    assert [sequence.sequence_id for sequence in sequences] == ["b", "x", "a"]
    assert [list(sequence.output_token_ids) for sequence in sequences] == [[5], [7, 3, 4, 6], [7, 3, 4, 8]]
    assert sequences[2].penalties == Penalties(2.0)
    assert (request.batch_id, request.vocab_size, request.create_key) == ("b", 50, b"k" * 16)


def test_the_limits_of_the_first_server_are_kept():
    history = PenaltyHistory.of(*created("PENALTY", [Sequence(), Sequence(max_new_tokens=7)]))
    assert [message.max_new_tokens for message in history.creation(b"").sequences] == [100, 100]


def test_edits_are_counted_generously():
    given = [Sequence([1, 2, 3], eos_token_ids=[1], stop_token_ids=[2, 3], output_token_ids=[4, 4])]
    request, info = created("PENALTY", given)
    history = PenaltyHistory.of(request, info)
    assert history.most_edits(0) == [3 + 1 + 2 + 2]
    history.count(token_update([5], None))
    assert history.most_edits(0) == [3 + 1 + 2 + 3]
    history.filter([(history.sequences[0].sequence_id,) * 2, (history.sequences[0].sequence_id, "fork")])
    assert history.most_edits(0) == [3 + 1 + 2 + 3] * 2


def test_beams_are_followed_through_their_parents():
    given = [
        Sequence(max_new_tokens=9, beam=Beam(2, return_token_log_probs=True), sequence_id="a"),
        Sequence(max_new_tokens=9, beam=Beam(3), sequence_id="b"),
    ]
    history = BeamHistory.of(*created("BEAM", given))
    assert not any(message.HasField("beams") for message in history.creation(b"").sequences)
    rows = [RowLayout("a", 0, 2), RowLayout("b", 2, 3)]
    history.advance(step_of([0, 0, 1, 1, 1], [1, 2, 3, 4, 5], rows))
    history.advance(step_of([4, 2, 3], [6, 7, 8], [RowLayout("b", 0, 3)], done=["a"], log_probs=[-1, -2, -3]))
    history.filter([("b", "x")])
    (sequence,) = [sequence_from_proto(message) for message in history.creation(b"").sequences]
    assert sequence.sequence_id == "x"
    beams = sequence.beams.live_beams
    assert [beam.token_ids.tolist() for beam in beams] == [[5, 6], [3, 7], [4, 8]]
    assert [beam.parent_chain.tolist() for beam in beams] == [[0, 2], [0, 0], [0, 1]]
    assert [beam.score for beam in beams] == [0, -1, -2]
    assert all(len(beam.token_log_probs) == 0 for beam in beams)
    again = BeamHistory.of(*created("BEAM", [sequence]))
    assert again.creation(b"").sequences == history.creation(b"").sequences


def test_hypotheses_that_cannot_be_in_the_pool_are_let_go():
    given = [Sequence(max_new_tokens=99, beam=Beam(2), sequence_id="a")]
    history = BeamHistory.of(*created("BEAM", given))
    for index, score in enumerate([-5.0, -1.0, -1.0, -3.0, -1.0, -4.0]):
        step = step_of([0], [1], [RowLayout("a", 0, 1)], entered=(hypothesis(score, index),))
        history.advance(step)
    (message,) = history.creation(b"").sequences
    pool = sequence_from_proto(message).beams.pool
    assert [(each.score, each.token_ids.tolist()) for each in pool] == [(-1, [1]), (-1, [2]), (-1, [4]), (-4, [5])]


def test_a_long_search_is_kept_and_let_go_without_recursion():
    history = BeamHistory.of(*created("BEAM", [Sequence(max_new_tokens=99, beam=Beam(1), sequence_id="a")]))
    step = step_of([0], [1], [RowLayout("a", 0, 1)])
    for _ in range(50_000):
        history.advance(step)
    (message,) = history.creation(b"").sequences
    assert len(sequence_from_proto(message).beams.live_beams[0].token_ids) == 50_000
    del history
