"""GetCapabilities says what is so."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import version
from typing import TYPE_CHECKING

import grpc
import pytest

from helpers.right_requests import STEPS
from helpers.wire import METHODS, SERVICE, Failed, Wire
from logitd.sampling import PROFILES
from logitd.sampling.beam import RULES
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from helpers.live_server import LiveServer


@pytest.fixture(scope="module")
def capabilities(wire: Wire) -> service_pb2.GetCapabilitiesResponse:
    return wire.call("GetCapabilities", service_pb2.GetCapabilitiesRequest())


def test_version_and_instance(
    server: LiveServer, wire: Wire, capabilities: service_pb2.GetCapabilitiesResponse
) -> None:
    assert capabilities.version == version("logitd")
    assert capabilities.instance_id == server.registry.instance_id
    again = wire.call("GetCapabilities", service_pb2.GetCapabilitiesRequest())
    assert again == capabilities


def test_limits_are_the_configuration(server: LiveServer, capabilities: service_pb2.GetCapabilitiesResponse) -> None:
    config = server.server.context.config
    for field in service_pb2.Limits.DESCRIPTOR.fields:
        assert getattr(capabilities.limits, field.name) == getattr(config, field.name), field.name
    assert len(fields(config)) >= len(service_pb2.Limits.DESCRIPTOR.fields)


def test_lists_are_complete(capabilities: service_pb2.GetCapabilitiesResponse) -> None:
    names = [types_pb2.PenaltyProfile.Name(number) for number in capabilities.profiles]
    assert names == [f"PENALTY_PROFILE_{name}" for name in PROFILES]
    assert [types_pb2.BeamRule.Name(number) for number in capabilities.beam_rules] == [
        f"BEAM_RULE_{name}" for name in RULES
    ]
    assert list(capabilities.data_types) == [1, 2, 3]
    assert capabilities.devices[0] == "cpu"


@pytest.mark.parametrize("form", [number for number in types_pb2.ApplyForm.values() if number])
def test_form_that_is_not_listed_is_unimplemented(
    wire: Wire, capabilities: service_pb2.GetCapabilitiesResponse, form: int
) -> None:
    _, open_batch, make = STEPS["Apply"]
    request = make(open_batch(wire))
    request.form = form
    code = code_of(wire, "Apply", request.SerializeToString())
    assert (code == "UNIMPLEMENTED") == (form not in capabilities.apply_forms)


def code_of(wire: Wire, method: str, data: bytes) -> str:
    """The status that the server gives; one of gRPC itself would lack the details."""
    try:
        wire.send_bytes(method, data)
    except Failed as error:
        return error.failure.code
    return "OK"


@pytest.mark.parametrize("method", METHODS)
def test_every_rpc_of_the_contract_is_served(wire: Wire, method: str) -> None:
    assert code_of(wire, method, b"") in {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}


def test_rpc_that_is_not_in_the_contract_is_unimplemented(wire: Wire) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        wire.channel.unary_unary(f"/{SERVICE}/Conjure")(b"", timeout=10)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_reflection_is_off_unless_asked_for(wire: Wire) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        wire.reflected_services()
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
