"""The configuration: each setting has a rule, a flag and a variable."""

from __future__ import annotations

import argparse
import sys
from dataclasses import FrozenInstanceError, fields
from math import inf, nan
from typing import Any

import pytest

from logitd.service import cli
from logitd.service.config import ConfigError, ServerConfig, add_arguments, load_config

# Two right values of the settings that take no number and not any text.
VALUES = {
    "listen": ("127.0.0.1:1", "[::1]:2"),
    "unix_socket_mode": ("0600", "0666"),
    "health_listen": ("127.0.0.1:1", "localhost:2"),
    "metrics_listen": ("127.0.0.1:1", "localhost:2"),
    "log_level": ("debug", "error"),
    "log_format": ("text", "json"),
}
# What a setting cannot be without.
COMPANIONS = {
    "tls_certificate": {"LOGITD_TLS_KEY": "key"},
    "tls_key": {"LOGITD_TLS_CERTIFICATE": "certificate"},
    "tls_client_ca": {"LOGITD_TLS_CERTIFICATE": "certificate", "LOGITD_TLS_KEY": "key"},
}
NUMBERS = [setting for setting in fields(ServerConfig) if type(setting.default) in (int, float)]


def load(*flags: str, **variables: str) -> ServerConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return load_config(parser.parse_args(flags), variables)


def test_defaults_listen_on_loopback_alone() -> None:
    config = load()
    assert config == ServerConfig()
    assert config.listen.startswith("127.0.0.1:")
    assert config.unix_socket == ""


def test_configuration_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ServerConfig().max_batches = 1  # type: ignore[misc]


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
def test_numbers_are_finite_and_positive(setting: Any) -> None:
    wrong = [-1, nan, inf] if type(setting.default) is float else [-1]
    for value in [*wrong, *([] if setting.metadata["may_be_zero"] else [0])]:
        with pytest.raises(ConfigError, match=f"{setting.name} must be finite and > 0, got {value}"):
            ServerConfig(**{setting.name: value})


@pytest.mark.parametrize("setting", fields(ServerConfig), ids=lambda setting: setting.name)
def test_flag_wins_over_variable_wins_over_default(setting: Any) -> None:
    flag, variable = f"--{setting.name.replace('_', '-')}", f"LOGITD_{setting.name.upper()}"
    if type(setting.default) is bool:
        assert getattr(load(**{variable: "1"}), setting.name) is True
        assert getattr(load(f"--no-{flag[2:]}", **{variable: "true"}), setting.name) is False
        return
    one, two = ("7000", "9000") if setting in NUMBERS else VALUES.get(setting.name, ("one", "two"))
    kind, companions = type(setting.default), COMPANIONS.get(setting.name, {})
    assert getattr(load(**{variable: one}, **companions), setting.name) == kind(one)
    assert getattr(load(flag, two, **{variable: one}, **companions), setting.name) == kind(two)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listen": ""}, "listen or unix_socket must be set, got neither"),
        ({"listen": "localhost"}, "listen must be HOST:PORT, got 'localhost'"),
        ({"listen": ":1"}, "listen must be HOST:PORT, got ':1'"),
        ({"listen": "::1:1"}, "listen must be HOST:PORT, got '::1:1'"),
        ({"listen": "localhost:65536"}, "listen must be HOST:PORT, got 'localhost:65536'"),
        ({"listen": "localhost:-1"}, "listen must be HOST:PORT, got 'localhost:-1'"),
        ({"metrics_listen": "x"}, "metrics_listen must be HOST:PORT, got 'x'"),
        ({"health_listen": "x"}, "health_listen must be HOST:PORT, got 'x'"),
        ({"unix_socket_mode": "rw"}, "unix_socket_mode must be octal permissions like 0660, got 'rw'"),
        ({"unix_socket_mode": ""}, "unix_socket_mode must be octal permissions like 0660, got ''"),
        ({"unix_socket_mode": "7777"}, "unix_socket_mode must be octal permissions like 0660, got '7777'"),
        ({"tls_certificate": "c"}, "tls_certificate and tls_key must be set together, got one of them"),
        ({"tls_key": "k"}, "tls_certificate and tls_key must be set together, got one of them"),
        ({"tls_client_ca": "a"}, "tls_client_ca must come with tls_certificate, got it alone"),
        (
            {"listen": "", "unix_socket": "s", "tls_certificate": "c", "tls_key": "k"},
            "tls_certificate must come with listen: only TCP has TLS, got none",
        ),
        ({"log_level": "loud"}, "log_level must be one of debug, info, warning, error, got 'loud'"),
        ({"log_format": "xml"}, "log_format must be one of json, text, got 'xml'"),
    ],
)
def test_setting_that_breaks_a_rule_is_refused_in_words(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**settings)
    assert str(caught.value) == message


def test_default_of_new_tokens_is_within_their_limit() -> None:
    with pytest.raises(ConfigError, match="default_max_new_tokens must be at most max_new_tokens, 10, got 11"):
        ServerConfig(max_new_tokens=10, default_max_new_tokens=11)


def test_message_limit_never_exceeds_what_grpc_counts() -> None:
    assert ServerConfig(max_rows_per_batch=2**20, max_vocab_size=2**20).max_message_bytes == 2**31 - 1


def test_a_server_without_its_packages_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "logitd.service.server", None)
    monkeypatch.setattr(cli, "set_up_logging", lambda config: None)
    assert cli.main(["serve", "--log-level", "error"]) == 2
    assert "must be installed" in capsys.readouterr().err
