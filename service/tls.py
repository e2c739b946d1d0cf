"""TLS for the TCP listener, from files that may be replaced while the server runs."""

from __future__ import annotations

import logging
import os
import ssl
from typing import TYPE_CHECKING

import grpc

from logitd.service.config import ConfigError

if TYPE_CHECKING:
    from logitd.service.config import ServerConfig

_LOG = logging.getLogger(__name__)


def make_credentials(config: ServerConfig) -> grpc.ServerCredentials | None:
    """The listener's credentials, None without TLS; raises `ConfigError` for files that cannot serve."""
    if not config.tls_certificate:
        return None
    files = CertificateFiles(config)
    return grpc.dynamic_ssl_server_credentials(
        files.load(),
        files.fetch,  # type: ignore[arg-type]  # the stubs do not know that it may return None, for no change
        require_client_authentication=bool(config.tls_client_ca),
    )


class CertificateFiles:
    """The certificate chain, its key, and the authority of the clients' certificates if they must present one."""

    def __init__(self, config: ServerConfig) -> None:
        self._certificate = config.tls_certificate
        self._key = config.tls_key
        self._client_ca = config.tls_client_ca
        self._seen: object = None

    def load(self) -> grpc.ServerCertificateConfiguration:
        """What the files hold, checked; raises `ConfigError`."""
        self._seen = self._signature()
        certificate, key = _read("tls_certificate", self._certificate), _read("tls_key", self._key)
        _check_pair(certificate, key)
        client_ca = None
        if self._client_ca:
            client_ca = _read("tls_client_ca", self._client_ca)
            _check_authority(client_ca)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """What the files hold now, None if that is what was loaded last or cannot serve.

        gRPC asks before each handshake. Files that are caught halfway through a replacement are reported once, and
        looked at again when they have changed again.
        """
        if self._signature() == self._seen:
            return None
        try:
            configuration = self.load()
        except ConfigError as error:
            _LOG.warning("the certificates stay as they were: %s", error)
            return None
        _LOG.info("the certificates were loaded again")
        return configuration

    def _signature(self) -> object:
        return [_stamp(path) for path in (self._certificate, self._key, self._client_ca) if path]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{name} must be a file that can be read, got {path!r}: {error.strerror}") from error


def _check_pair(certificate: bytes, key: bytes) -> None:
    # ssl reads files alone; these are in memory, so that what is checked is what is served.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with open(os.memfd_create("certificate", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(certificate + b"\n" + key)
        try:
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"tls_certificate and tls_key must be a matching pair in PEM, got {error}") from error


def _no_password() -> str:
    # Without this ssl would ask the terminal.
    raise ValueError("a key with a password")


def _check_authority(client_ca: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"tls_client_ca must hold certificates in PEM, got {error}") from error
