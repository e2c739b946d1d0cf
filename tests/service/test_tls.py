"""TLS and mutual TLS with certificates that are replaced while the server runs."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from helpers.live_server import LiveServer, serving
from helpers.server_process import SECONDS, running_process
from helpers.wire import SERVICE, TIMEOUT
from logitd.service.config import ConfigError, ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST = "127.0.0.1"


@dataclass
class Files:
    """The files that a server reads; each authority that issues them is new."""

    folder: Path
    authority: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        self.issue()
        self.trust(trustme.CA())

    def issue(self) -> bytes:
        """Put another certificate and its key in place; the certificate as PEM."""
        issued = self.authority.issue_cert(HOST)
        self.put("key", issued.private_key_pem.bytes())
        self.put("certificate", issued.cert_chain_pems[0].bytes())
        return issued.cert_chain_pems[0].bytes()

    def trust(self, clients: trustme.CA) -> None:
        """Put another authority of clients in place."""
        self.clients = clients
        self.put("client_ca", clients.cert_pem.bytes())

    def put(self, name: str, data: bytes) -> None:
        """Replace a file as a volume does: in one step."""
        (self.folder / "new").write_bytes(data)
        os.replace(self.folder / "new", self.folder / name)

    def settings(self, *, is_mutual: bool = False) -> dict[str, str]:
        pair = {"tls_certificate": str(self.folder / "certificate"), "tls_key": str(self.folder / "key")}
        return pair | ({"tls_client_ca": str(self.folder / "client_ca")} if is_mutual else {})


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@contextmanager
def serving_tls(files: Files, **settings: Any) -> Iterator[LiveServer]:
    is_mutual = settings.pop("is_mutual", False)
    config = ServerConfig(listen=f"{HOST}:0", linger_seconds=0, **files.settings(is_mutual=is_mutual), **settings)
    with serving(config) as live:
        yield live


@contextmanager
def connected(live: LiveServer, roots: trustme.CA, client: trustme.LeafCert | None = None) -> Iterator[grpc.Channel]:
    """A connection of its own, which trusts `roots` and presents the certificate of `client`."""
    pair = (None, None) if client is None else (client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes())
    credentials = grpc.ssl_channel_credentials(roots.cert_pem.bytes(), *pair)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(live.server.endpoints.tcp_address, credentials, options) as channel:
        yield channel


def answers(live: LiveServer, roots: trustme.CA, client: trustme.LeafCert | None = None) -> bool:
    """Whether a new connection is served; if not, it is refused while it is made."""
    with connected(live, roots, client) as channel:
        return is_served(channel)


def is_served(channel: grpc.Channel) -> bool:
    call = channel.unary_unary(f"/{SERVICE}/GetCapabilities").future(b"", timeout=TIMEOUT)
    assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    return bool(call.code() == grpc.StatusCode.OK)


def served_certificate(live: LiveServer) -> bytes:
    """What a new connection is shown, as PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, port = live.server.endpoints.tcp_address.split(":")
    with socket.create_connection((host, int(port)), SECONDS) as plain, context.wrap_socket(plain) as wrapped:
        shown = wrapped.getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown).encode()


def same(one: bytes, other: bytes) -> bool:
    return ssl.PEM_cert_to_DER_cert(one.decode()) == ssl.PEM_cert_to_DER_cert(other.decode())


def test_tcp_has_tls_and_the_unix_socket_has_none(files: Files, tmp_path: Path) -> None:
    with serving_tls(files, unix_socket=str(tmp_path / "s")) as live:
        assert answers(live, files.authority)
        assert not answers(live, trustme.CA())
        with grpc.insecure_channel(live.server.endpoints.tcp_address) as channel:
            assert not is_served(channel)
        with grpc.insecure_channel(live.address) as channel:
            assert is_served(channel)


def test_replaced_certificate_is_served_without_a_restart(files: Files) -> None:
    with serving_tls(files) as live, connected(live, files.authority) as channel:
        assert is_served(channel)
        files.authority = trustme.CA()
        renewed = files.issue()
        assert same(served_certificate(live), renewed)
        assert answers(live, files.authority)
        assert is_served(channel)  # a connection stays as it began: this one does not trust the new authority


@pytest.mark.parametrize("fault", ["garbage", "gone", "the old key"])
def test_files_that_cannot_serve_leave_the_last_good_ones(
    files: Files, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = (files.folder / "certificate").read_bytes()
    with serving_tls(files) as live, caplog.at_level(logging.INFO, "logitd.service.tls"):
        if fault == "garbage":
            files.put("certificate", b"garbage")
        elif fault == "gone":
            (files.folder / "key").unlink()
        else:
            key = (files.folder / "key").read_bytes()
            files.issue()
            files.put("key", key)
        assert same(served_certificate(live), good)
        assert same(served_certificate(live), good)
        assert [record.levelname for record in caplog.records] == ["WARNING"]  # told once, not at each handshake
        renewed = files.issue()
        assert same(served_certificate(live), renewed)
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_client_must_present_a_certificate_of_the_authority(files: Files) -> None:
    good = files.clients.issue_cert("decoder@example.org")
    with serving_tls(files, is_mutual=True) as live:
        assert answers(live, files.authority, good)
        assert not answers(live, files.authority)
        assert not answers(live, files.authority, trustme.CA().issue_cert("decoder@example.org"))
        files.trust(trustme.CA())
        assert answers(live, files.authority, files.clients.issue_cert("decoder@example.org"))
        assert not answers(live, files.authority, good)


def test_pair_that_cannot_serve_is_refused_at_the_start(files: Files) -> None:
    encrypted = load_pem_private_key((files.folder / "key").read_bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    other = files.authority.issue_cert(HOST).private_key_pem.bytes()
    for name, data, rule in (
        ("key", other, "tls_certificate and tls_key must be a matching pair in PEM, got"),
        ("key", encrypted, "tls_certificate and tls_key must be a matching pair in PEM, got a key with a password"),
        ("certificate", b"", "tls_certificate and tls_key must be a matching pair in PEM, got"),
        ("client_ca", b"garbage", "tls_client_ca must hold certificates in PEM, got"),
    ):
        right = (files.folder / name).read_bytes()
        files.put(name, data)
        with pytest.raises(ConfigError, match=rule), serving_tls(files, is_mutual=True):
            pytest.fail("it serves")
        files.put(name, right)
    (files.folder / "key").unlink()
    with pytest.raises(ConfigError, match="tls_key must be a file that can be read"), serving_tls(files):
        pytest.fail("it serves")


def test_command_ends_with_2_for_files_that_cannot_serve(tmp_path: Path) -> None:
    flags = ("--listen", f"{HOST}:0", "--tls-certificate", str(tmp_path / "none"), "--tls-key", str(tmp_path / "none"))
    with running_process(tmp_path / "log", *flags) as server:
        assert server.process.wait(SECONDS) == 2
        assert server.log.read_text().splitlines()[-1].startswith("logitd: tls_certificate must be a file that can be")
