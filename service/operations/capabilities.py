"""GetCapabilities."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from logitd.service.codec import ITEM_TYPES, parse
from logitd.service.names import PROFILE_NAMES, RULES_BY_NUMBER
from logitd.service.operations.apply_forms import REPLIES
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from logitd.service.config import ServerConfig
    from logitd.service.operations.context import OperationContext

_FEATURES = ("rollback", "filter", "merge", "chunks", "edits_since_revision", "finish_early", "rebuild", "drafts")


def get_capabilities(context: OperationContext, data: bytes) -> bytes:
    """What this server does, and its limits."""
    parse(service_pb2.GetCapabilitiesRequest, data)
    response = service_pb2.GetCapabilitiesResponse(
        version=version("logitd"),
        instance_id=context.registry.instance_id,
        data_types=sorted(ITEM_TYPES),
        devices=["cpu"],
        profiles=sorted(PROFILE_NAMES),
        beam_rules=sorted(RULES_BY_NUMBER),
        apply_forms=sorted(REPLIES),
        features=_features(context.config),
        limits=_limits(context.config),
    )
    return response.SerializeToString()


def _features(config: ServerConfig) -> list[str]:
    memory_files = ["shared_memory_memory_file"] if config.unix_socket else []
    named_files = ["shared_memory_named_file"] if config.shared_memory_dir else []
    return [*_FEATURES, *memory_files, *named_files]


def _limits(config: ServerConfig) -> service_pb2.Limits:
    return service_pb2.Limits(
        max_message_bytes=config.max_message_bytes,
        max_batches=config.max_batches,
        max_rows_per_batch=config.max_rows_per_batch,
        max_vocab_size=config.max_vocab_size,
        max_new_tokens=config.max_new_tokens,
        default_max_new_tokens=config.default_max_new_tokens,
        max_prompt_tokens=config.max_prompt_tokens,
        max_stop_token_ids=config.max_stop_token_ids,
        idle_timeout_seconds=config.idle_timeout_seconds,
    )
