"""The configuration: each setting has a rule, a flag and a variable."""

from __future__ import annotations

import argparse
from dataclasses import FrozenInstanceError, fields
from math import inf, nan
from typing import Any

import pytest
from logitd.service.config import ConfigError, ServerConfig, add_arguments, load_config

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
    one, two = ("7000", "9000") if setting in NUMBERS else ("one", "two")
    kind = type(setting.default)
    assert getattr(load(**{variable: one}), setting.name) == kind(one)
    assert getattr(load(flag, two, **{variable: one}), setting.name) == kind(two)


def test_default_of_new_tokens_is_within_their_limit() -> None:
    with pytest.raises(ConfigError, match="default_max_new_tokens must be at most max_new_tokens, 10, got 11"):
        ServerConfig(max_new_tokens=10, default_max_new_tokens=11)


def test_message_limit_never_exceeds_what_grpc_counts() -> None:
    assert ServerConfig(max_rows_per_batch=2**20, max_vocab_size=2**20).max_message_bytes == 2**31 - 1
