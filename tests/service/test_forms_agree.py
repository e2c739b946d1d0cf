"""Whatever the form, the pieces and the way of the bytes: the logits that a caller ends up with are those of dense."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from helpers import forms
from helpers.forms import Step
from helpers.live_server import serving
from helpers.penalty_strategies import DTYPES, PROFILES, batches, draw_logits, draw_pool
from helpers.tensors import assert_same_bits, assert_same_numbers
from helpers.wire import Wire, creation
from helpers.wire_batches import creation_of, partitions
from helpers.wire_updates import Update, draw_update, message_of, send_update
from logitd.client import Client
from logitd.service.config import ServerConfig
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from helpers.forms import Form, Region

# The last has rows of more than 16 KiB in every type: such logits are not parsed but viewed.
VOCABULARIES = (1, 2, 7, 100, 8_209)
SEEDS = st.integers(0, 2**32 - 1)
PADDINGS = (0, 0, 1, 5)
NUM_STEPS = 5
# Steps whose differences can be told are the most, so that there are old tables to be brought up to date.
STEPS = st.sampled_from(("tokens", "tokens", "tokens", "tokens", "filter", "merge", "rebuild"))
REGION_BYTES = 2 << 20
GAPS = st.tuples(st.integers(0, 7), st.integers(0, 7))
quick = settings(
    database=None, deadline=None, max_examples=4, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)


class Connection(NamedTuple):
    """A way to a server, and regions that both sides have."""

    wire: Wire
    regions: Sequence[Region]


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    folder, shared = tmp_path_factory.mktemp("server"), tmp_path_factory.mktemp("shared")
    config = ServerConfig(listen="", unix_socket=str(folder / "socket"), linger_seconds=0)
    with (
        serving(replace(config, shared_memory_dir=str(shared))) as live,
        Client(live.address) as client,
        client.shared_logits(1, REGION_BYTES // 4) as memory_file,
        client.shared_logits(1, REGION_BYTES // 4, shared_memory_dir=str(shared)) as named_file,
    ):
        wire = Wire(live.address)
        yield Connection(wire, [forms.Region(memory_file), forms.Region(named_file)])
        wire.close()


class Decoder:
    """A caller that takes a batch through steps and asks in every form after each."""

    def __init__(self, connection: Connection, data: st.DataObject, profile: str, dtype: torch.dtype) -> None:
        self._wire, self._regions = connection
        self._data, self._profile, self._dtype = data, profile, dtype
        self._vocab_size = data.draw(st.sampled_from(VOCABULARIES))
        self._pool = draw_pool(data.draw, self._vocab_size)
        self._tables = forms.Tables()
        self._num_names = 0
        self.batch = self._wire.open(self._draw_creation(max_rows=3))

    def delete(self) -> None:
        self._wire.call("DeleteBatch", service_pb2.DeleteBatchRequest(batch_id=self.batch.batch_id))

    def step(self, kind: str) -> None:
        """One step, and all forms after it."""
        if kind == "tokens":
            self._output()
            return
        {"filter": self._filter, "merge": self._merge, "rebuild": self._rebuild}[kind]()
        self._tables.forget()
        self.check()

    def check(self, update: Update | None = None) -> None:
        """All forms give the bits of one dense message; an update comes along with whichever is asked for first."""
        revision = self.batch.revision + (update is not None)
        logits = self._draw_logits()
        step = Step(self.batch, self._profile, logits, self._data.draw(partitions(len(logits))), revision)
        whole = replace(step, pieces=[(0, len(logits))])
        asked = [forms.dense(whole), forms.dense(step), forms.sparse(whole), forms.sparse(step)]
        for region in self._regions:
            asked += region.forms(step, self._data.draw(GAPS))
        num_computed_there = len(asked)
        asked += [self._tables.whole(step), *(self._tables.since(step, base) for base in range(-1, revision + 2))]
        expected, *results = self._ask(asked, update)
        self.batch.revision = revision
        assert_same_bits(expected[:, self._vocab_size :], logits[:, self._vocab_size :])
        for number, result in enumerate(results, start=1):
            # Which NaN is made is the processor's affair, and edits are applied by another library.
            (assert_same_bits if number < num_computed_there else assert_same_numbers)(result, expected)

    def _ask(self, asked: Sequence[Form], update: Update | None) -> Iterator[torch.Tensor]:
        # On one stream, in any order.
        order = [asked[place] for place in np.random.default_rng(self._data.draw(SEEDS)).permutation(len(asked))]
        requests = [request for form in order for request in form.requests]
        if update is not None:
            requests[0].target.CopyFrom(self.batch.target())
            requests[0].tokens.CopyFrom(message_of(update))
        replies = iter(self._wire.stream("Apply", requests))
        answers = {id(form): [next(replies) for _ in form.requests] for form in order}
        return (form.result(answers[id(form)]) for form in asked)

    def _output(self) -> None:
        update = draw_update(self._data, self.batch, self._vocab_size)
        if self._data.draw(st.booleans()):
            self.check(update)
        else:
            send_update(self.batch, update)
            self.check()

    def _filter(self) -> None:
        names = [row.sequence_id for row in self.batch.describe().rows]
        places = self._data.draw(st.lists(st.integers(0, len(names) - 1), min_size=1, max_size=len(names) + 1))
        selection = [
            service_pb2.SequenceSelection(
                sequence_id=names[place], new_sequence_id=self._new_name() if place in places[:number] else ""
            )
            for number, place in enumerate(places)
        ]
        request = service_pb2.FilterBatchRequest(target=self.batch.target(), sequences=selection)
        self.batch.revision = self._wire.call("FilterBatch", request).revision

    def _merge(self) -> None:
        other = self._wire.open(self._draw_creation(max_rows=2))
        request = service_pb2.MergeBatchesRequest(target=self.batch.target(), source=other.target())
        self.batch.revision = self._wire.call("MergeBatches", request).revision

    def _rebuild(self) -> None:
        logits, state = self._draw_logits(), self.batch.describe()
        before = self.batch.apply(logits)
        self.delete()
        request = creation(
            *state.sequences, batch_id=state.batch_id, vocab_size=state.vocab_size, profile=state.profile
        )
        self.batch = self._wire.open(request)
        assert_same_bits(self.batch.apply(logits), before)

    def _draw_creation(self, max_rows: int) -> service_pb2.CreateBatchRequest:
        request = creation_of(self._data.draw(batches(self._profile, self._vocab_size, self._dtype, max_rows=max_rows)))
        for sequence in request.sequences:
            sequence.sequence_id = self._new_name()
        return request

    def _draw_logits(self) -> torch.Tensor:
        # [R, V and the padding]
        num_rows, padding = len(self.batch.describe().rows), self._data.draw(st.sampled_from(PADDINGS))
        return draw_logits(self._data.draw, num_rows, self._vocab_size + padding, self._dtype, self._pool)

    def _new_name(self) -> str:
        self._num_names += 1
        return f"sequence {self._num_names}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_form_gives_the_bits_of_dense_after_any_steps(
    connection: Connection, profile: str, dtype: torch.dtype
) -> None:
    @seed(len(DTYPES) * PROFILES.index(profile) + DTYPES.index(dtype))  # other batches for each
    @quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        decoder = Decoder(connection, data, profile, dtype)
        decoder.check()
        for _ in range(NUM_STEPS):
            decoder.step(data.draw(STEPS))
        decoder.delete()

    check()
