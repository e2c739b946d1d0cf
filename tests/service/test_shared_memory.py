"""Regions: what they promise, what they refuse, and what a caller cannot do to the server through them."""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import dataclasses
import errno
import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from helpers.live_server import serving
from helpers.wire import Failed, Wire, creation, read_tensor
from logitd.service.config import ServerConfig
from logitd.service.errors import InvalidField
from logitd.service.regions import MemoryFileRegion, base
from logitd.v1 import service_pb2, types_pb2
from logitd.v1.types_pb2 import BeamParameters, PenaltyParameters, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REGION_BYTES = 192
# (offset, bytes of the logits, whether they may be read), as in the public reports on offset and size checks:
# Triton PR 6914, 7111, 8170, 8335.
PLACES = [
    (0, 192, True),
    (96, 96, True),
    (0, 216, False),
    (192, 24, False),
    (191, 24, False),
    (-32, 24, False),
    (2**63 - 1, 24, False),
    (-(2**63), 24, False),
    (2, 24, False),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory, directory: Path) -> Iterator[Wire]:
    path = str(tmp_path_factory.mktemp("server") / "logitd.sock")
    config = ServerConfig(listen="", unix_socket=path, linger_seconds=0)
    with serving(dataclasses.replace(config, shared_memory_dir=str(directory))) as live:
        wire = Wire(live.address)
        yield wire
        wire.close()


def make_file(directory: Path, data: bytes, mode: int = 0o600) -> str:
    path = directory / f"logits-{os.urandom(4).hex()}"
    path.write_bytes(data)
    path.chmod(mode)
    return path.name


def register(wire: Wire, name: str, byte_size: int) -> str:
    request = service_pb2.RegisterSharedMemoryRequest(file_name=name, byte_size=byte_size)
    return wire.call("RegisterSharedMemory", request).region_id


def shared(region_id: str, offset: int, rows: int, columns: int = 6) -> types_pb2.Tensor:
    place = types_pb2.SharedMemoryRef(region_id=region_id, offset=offset)
    return types_pb2.Tensor(data_type=types_pb2.DATA_TYPE_FP32, shape=[rows, columns], shared_memory=place)


def penalty_batch(rows: int) -> service_pb2.CreateBatchRequest:
    asked = PenaltyParameters(frequency_penalty=0.5)
    one = np.array([1], np.int32).tobytes()
    return creation(*(Sequence(sequence_id=str(n), penalties=asked, output_token_ids=one) for n in range(rows)))


def failure(wire: Wire, method: str, request: Any) -> tuple[str, str, str]:
    with pytest.raises(Failed) as caught:
        wire.call(method, request)
    return caught.value.failure.code, caught.value.failure.reason, caught.value.failure.field


@pytest.mark.parametrize(("offset", "num_bytes", "is_right"), PLACES)
def test_places_in_a_region_are_checked(
    wire: Wire, directory: Path, offset: int, num_bytes: int, is_right: bool
) -> None:
    logits = np.arange(REGION_BYTES // 4, dtype=np.float32)
    region = register(wire, make_file(directory, logits.tobytes()), REGION_BYTES)
    with wire.opened(penalty_batch(num_bytes // 24)) as batch:
        tensor = shared(region, offset, num_bytes // 24)
        request = service_pb2.ApplyRequest(target=batch.target(), logits=tensor)
        if is_right:
            expected = torch.from_numpy(logits[offset // 4 :][: num_bytes // 4].reshape(-1, 6).copy())
            expected[:, 1] -= 0.5
            assert torch.equal(read_tensor(wire.call("Apply", request).dense.logits), expected)
        else:
            path = "logits.shared_memory.offset"
            assert failure(wire, "Apply", request) == ("INVALID_ARGUMENT", "INVALID_FIELD", path)


def test_in_place_changes_the_memory_and_the_other_forms_do_not(wire: Wire, directory: Path) -> None:
    logits = np.arange(12, dtype=np.float32)
    name = make_file(directory, logits.tobytes())
    region = register(wire, name, logits.nbytes)
    with wire.opened(penalty_batch(2)) as batch:
        for form in (types_pb2.APPLY_FORM_DENSE, types_pb2.APPLY_FORM_SPARSE):
            request = service_pb2.ApplyRequest(target=batch.target(), form=form, logits=shared(region, 0, 2))
            wire.call("Apply", request)
            assert (directory / name).read_bytes() == logits.tobytes()
        request.form = types_pb2.APPLY_FORM_IN_PLACE
        wire.call("Apply", request)
        logits[[1, 7]] -= 0.5
        assert (directory / name).read_bytes() == logits.tobytes()


def test_a_region_is_of_no_use_without_its_id(wire: Wire) -> None:
    with wire.opened(penalty_batch(1)) as batch:
        request = service_pb2.ApplyRequest(target=batch.target(), logits=shared("guessed", 0, 1))
        assert failure(wire, "Apply", request)[:2] == ("NOT_FOUND", "REGION_NOT_FOUND")


def test_a_region_that_was_given_back_is_gone(wire: Wire, directory: Path) -> None:
    region = register(wire, make_file(directory, bytes(24)), 24)
    request = service_pb2.UnregisterSharedMemoryRequest(region_id=region)
    wire.call("UnregisterSharedMemory", request)
    assert failure(wire, "UnregisterSharedMemory", request)[:2] == ("NOT_FOUND", "REGION_NOT_FOUND")


def test_a_truncated_file_is_refused_at_its_next_use(wire: Wire, directory: Path) -> None:
    name = make_file(directory, bytes(REGION_BYTES))
    region = register(wire, name, REGION_BYTES)
    os.truncate(directory / name, 0)
    with wire.opened(penalty_batch(1)) as batch:
        request = service_pb2.ApplyRequest(target=batch.target(), logits=shared(region, 0, 1))
        assert failure(wire, "Apply", request)[2] == "logits.shared_memory.region_id"


def test_a_chunk_that_was_acknowledged_is_the_servers_own(wire: Wire, directory: Path) -> None:
    logits = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    name = make_file(directory, logits.tobytes())
    region = register(wire, name, logits.nbytes)
    searches = [Sequence(sequence_id=n, max_new_tokens=4, beam=BeamParameters(width=2)) for n in "ab"]
    with wire.opened(creation(*searches)) as batch, wire.opened(creation(*searches)) as whole:
        target = batch.target()
        first = service_pb2.BeamStepRequest(target=target, logits=shared(region, 0, 1), has_more_chunks=True)
        talk = wire.converse("BeamStep")
        assert talk.ask(first).is_chunk_acknowledgement
        (directory / name).write_bytes(b"\xff" * 24)
        second = service_pb2.BeamStepRequest(target=target, first_row=1)
        second.logits.CopyFrom(types_pb2.Tensor(data_type=1, shape=[1, 6], data=logits[1].tobytes()))
        assert talk.ask(second).scores == whole.beam_step(torch.from_numpy(logits)).scores
        talk.finish()


@pytest.mark.parametrize("name", ["", ".hidden", "../escape", "a/b", "missing", "nul\0"])
def test_names_stay_below_the_directory(wire: Wire, name: str) -> None:
    request = service_pb2.RegisterSharedMemoryRequest(file_name=name, byte_size=8)
    assert failure(wire, "RegisterSharedMemory", request) == ("INVALID_ARGUMENT", "INVALID_FIELD", "file_name")


def test_links_pipes_and_files_of_everybody_are_refused(wire: Wire, directory: Path) -> None:
    target = directory / make_file(directory, bytes(24))
    (directory / "soft").symlink_to(target)
    os.link(target, directory / "hard")
    os.mkfifo(directory / "pipe")
    open_to_all = make_file(directory, bytes(24), mode=0o666)
    for name in ("soft", "hard", "pipe", open_to_all):
        request = service_pb2.RegisterSharedMemoryRequest(file_name=name, byte_size=24)
        assert failure(wire, "RegisterSharedMemory", request)[2] == "file_name"


@pytest.mark.parametrize("byte_size", [-1, 0, 193, 2**62])
def test_a_region_is_no_larger_than_its_file(wire: Wire, directory: Path, byte_size: int) -> None:
    name = make_file(directory, bytes(REGION_BYTES))
    request = service_pb2.RegisterSharedMemoryRequest(file_name=name, byte_size=byte_size)
    code = "RESOURCE_EXHAUSTED" if byte_size > 2**40 else "INVALID_ARGUMENT"
    assert failure(wire, "RegisterSharedMemory", request)[0] == code


@pytest.mark.parametrize(("number", "is_refused"), [(errno.EFAULT, True), (errno.ENOMEM, True), (errno.EINVAL, False)])
def test_pages_that_cannot_be_had_are_refused(monkeypatch: pytest.MonkeyPatch, number: int, is_refused: bool) -> None:
    class Map(mmap.mmap):
        def madvise(self, *_: Any) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(base.mmap, "mmap", Map)
    descriptor = os.memfd_create("logits", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 24)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    region = MemoryFileRegion.map(descriptor, 24)
    os.close(descriptor)
    if is_refused:
        with pytest.raises(InvalidField, match="pages that can be had"):
            region.touch_pages(0)
    else:  # an old kernel: the pages are touched one by one
        assert region.touch_pages(0) == 24


def test_a_region_without_pages_is_not_kept(wire: Wire, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise InvalidField("byte_size", "must be backed by pages that can be had", "no space left")

    request = service_pb2.RegisterSharedMemoryRequest(file_name=make_file(directory, bytes(24)), byte_size=24)
    before = wire.call("GetCapabilities", service_pb2.GetCapabilitiesRequest())
    with monkeypatch.context() as patch:
        patch.setattr(base.Region, "touch_pages", refuse)
        for _ in range(before.limits.max_batches):  # more than there may be regions
            assert failure(wire, "RegisterSharedMemory", request) == ("INVALID_ARGUMENT", "INVALID_FIELD", "byte_size")
    assert wire.call("RegisterSharedMemory", request).region_id


def test_a_large_region_is_touched_piece_by_piece_between_other_work(wire: Wire, directory: Path) -> None:
    pieces: list[int] = []
    touch_pages = base.Region.touch_pages

    def note(region: base.Region, start: int) -> int:
        pieces.append(start)
        return touch_pages(region, start)

    name = make_file(directory, b"")
    os.truncate(directory / name, 9 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base.Region, "touch_pages", note)
        wire.call("RegisterSharedMemory", service_pb2.RegisterSharedMemoryRequest(file_name=name, byte_size=9 << 20))
    assert pieces == [0, 4 << 20, 8 << 20]


def test_the_side_socket_survives_a_failing_accept(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError(errno.EMFILE, "too many open files")]
    real = asyncio.selector_events.BaseSelectorEventLoop.sock_accept

    async def flaky(loop: Any, listener: Any) -> Any:
        if failures:
            raise failures.pop()
        return await real(loop, listener)

    monkeypatch.setattr(asyncio.selector_events.BaseSelectorEventLoop, "sock_accept", flaky)
    for data in (b"first", b"second"):  # the accept that waits already is still the real one
        client = Wire(wire.address)
        assert client.share(data)
        client.close()
    assert not failures
