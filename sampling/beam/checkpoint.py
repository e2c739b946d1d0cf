"""A rule's private state as bytes: the hypotheses of its pool, their order, and the scores of empty slots.

Live beams and hypotheses themselves are not in it: a caller has them from the replies. Hypotheses are named by
what they are (`Hypothesis.key`), so that a caller may hand back all that ever entered the pool, or only those
still in it, in any order.

Layout, little-endian: version u8, rule tag u8, slots u32; for each slot is-filled u8, score f64, key 8 bytes.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

from logitd.sampling.beam.hypothesis import KEY_BYTES
from logitd.sampling.beam.pool import PoolSlot
from logitd.sampling.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitd.sampling.beam.hypothesis import Hypothesis
    from logitd.sampling.beam.parameters import BeamParameters
    from logitd.sampling.beam.pool import Pool
    from logitd.sampling.beam.rule import BeamRule

_VERSION = 1
_HEADER = struct.Struct("<BBI")
_SLOT = struct.Struct(f"<Bd{KEY_BYTES}s")
_NO_KEY = bytes(KEY_BYTES)


def save_pool(rule: BeamRule, pool: Pool) -> bytes:
    """The checkpoint of a pool."""
    slots = (
        _SLOT.pack(slot.hypothesis is not None, slot.score, slot.hypothesis.key() if slot.hypothesis else _NO_KEY)
        for slot in pool
    )
    return _HEADER.pack(_VERSION, rule.checkpoint_tag, len(pool)) + b"".join(slots)


def restore_pool(
    rule: BeamRule, parameters: BeamParameters, hypotheses: Sequence[Hypothesis], checkpoint: bytes
) -> Pool:
    """The pool of a checkpoint, its hypotheses found among those given.

    Raises
    ------
    ParameterError
        Of field ``checkpoint``: malformed, of another rule or version, or of another request; of field ``pool``: a
        hypothesis is missing.
    """
    slots = _parse(rule, checkpoint)
    by_key: dict[bytes, Hypothesis] = {hypothesis.key(): hypothesis for hypothesis in hypotheses}
    pool = tuple(_fill(filled, score, key, by_key) for filled, score, key in slots)
    is_sorted = all(before.score >= after.score for before, after in itertools.pairwise(pool))
    if not (is_sorted and rule.is_pool(parameters, pool)):
        rule_text = f"must be of a search by {rule.name} with the same parameters"
        raise ParameterError("checkpoint", rule_text, f"{len(pool)} slots")
    return pool


def _parse(rule: BeamRule, checkpoint: bytes) -> list[tuple[int, float, bytes]]:
    if len(checkpoint) < _HEADER.size:
        raise ParameterError("checkpoint", f"must have at least {_HEADER.size} bytes", f"{len(checkpoint)} bytes")
    version, tag, num_slots = _HEADER.unpack_from(checkpoint)
    if version != _VERSION:
        raise ParameterError("checkpoint", f"must be of version {_VERSION}", f"version {version}")
    if tag != rule.checkpoint_tag:
        raise ParameterError("checkpoint", f"must be of rule {rule.name} (tag {rule.checkpoint_tag})", f"tag {tag}")
    expected = _HEADER.size + num_slots * _SLOT.size
    if len(checkpoint) != expected:
        raise ParameterError("checkpoint", f"must have {expected} bytes", f"{len(checkpoint)} bytes")
    return list(_SLOT.iter_unpack(checkpoint[_HEADER.size :]))


def _fill(is_filled: int, score: float, key: bytes, by_key: dict[bytes, Hypothesis]) -> PoolSlot:
    if not is_filled:
        return PoolSlot(score, None)
    hypothesis = by_key.get(key)
    if hypothesis is None or hypothesis.score != score:
        raise ParameterError("pool", "must hold every hypothesis that the checkpoint names", f"no {key.hex()}")
    return PoolSlot(score, hypothesis)
