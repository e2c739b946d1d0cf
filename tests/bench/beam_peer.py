"""One step of Transformers' beam search after the model: its own methods, one after the other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from transformers import GenerationMixin, LogitsProcessorList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList


class PeerState(NamedTuple):
    """B requests of k beams each, in tensors of the full length L = prompt + max_new_tokens.

    Attributes
    ----------
    running, finished : int64 [B, k, L]
        Token ids of the live beams and of the pool.
    running_scores, scores : float32 [B, k]
    running_indices, indices : int32 [B, k, max_new_tokens]
        The row that each token continued.
    is_finished : bool [B, k]
    can_improve : bool [B, 1]
    """

    running: torch.Tensor
    running_scores: torch.Tensor
    running_indices: torch.Tensor
    finished: torch.Tensor
    scores: torch.Tensor
    indices: torch.Tensor
    is_finished: torch.Tensor
    can_improve: torch.Tensor
    length: int


class TransformersBeams:
    """What `generate` does in a step once it has the logits, for all requests in one batch."""

    def __init__(
        self, prompts: torch.Tensor, *, width: int, max_new_tokens: int, eos_token_id: int, processors: list[object]
    ) -> None:
        # prompts: [B, P]
        self._engine = GenerationMixin()
        self._batch_size, self._prompt_length = prompts.shape
        self._width = width
        self._max_length = self._prompt_length + max_new_tokens
        self._num_candidates = 2 * width
        self._processors = LogitsProcessorList(processors)
        eos = EosTokenCriteria(eos_token_id)
        self._stopping = StoppingCriteriaList([MaxLengthCriteria(self._max_length), eos])
        self._is_top = torch.arange(self._num_candidates) < width
        self.start = self._start(prompts, max_new_tokens, eos_token_id)

    def _start(self, prompts: torch.Tensor, max_new_tokens: int, fill: int) -> PeerState:
        shape = (self._batch_size, self._width)
        running = torch.full((*shape, self._max_length), fill)
        running[:, :, : self._prompt_length] = prompts[:, None]
        running_scores = torch.zeros(shape)
        running_scores[:, 1:] = -1e9
        indices = torch.full((*shape, max_new_tokens), -1, dtype=torch.int32)
        return PeerState(
            running,
            running_scores,
            indices,
            running.clone(),
            torch.full(shape, -1e9),
            indices.clone(),
            torch.zeros(shape, dtype=torch.bool),
            torch.ones(self._batch_size, 1, dtype=torch.bool),
            self._prompt_length,
        )

    def step(self, state: PeerState, logits: torch.Tensor) -> PeerState:
        """The state after a step; `early_stopping` is "never" and the length penalty 1.

        `generate` copies the logits first, which is left out here.
        """
        # logits: float32 [B * k, V]
        engine, length = self._engine, state.length
        flat = engine._flatten_beam_dim(state.running[:, :, :length])
        log_probs = torch.nn.functional.log_softmax(logits, dim=-1)
        log_probs = engine._unflatten_beam_dim(self._processors(flat, log_probs), self._batch_size, self._width)
        sums = (log_probs + state.running_scores[:, :, None]).reshape(self._batch_size, -1)
        top_scores, top_tokens, top_indices = engine._get_top_k_continuations(
            accumulated_log_probs=sums,
            running_sequences=state.running,
            running_beam_indices=state.running_indices,
            cur_len=length,
            decoder_prompt_len=self._prompt_length,
            do_sample=False,
            beams_to_keep=self._num_candidates,
            num_beams=self._width,
            batch_size=self._batch_size,
        )
        hits = self._stopping(engine._flatten_beam_dim(top_tokens[:, :, : length + 1]), None)
        hits = engine._unflatten_beam_dim(hits, self._batch_size, self._num_candidates)
        running, running_scores, running_indices = engine._get_running_beams_for_next_iteration(
            topk_log_probs=top_scores,
            topk_running_sequences=top_tokens,
            topk_running_beam_indices=top_indices,
            next_token_hits_stopping_criteria=hits,
            num_beams=self._width,
        )
        finished, scores, indices, is_finished = engine._update_finished_beams(
            sequences=state.finished,
            topk_running_sequences=top_tokens,
            beam_scores=state.scores,
            topk_log_probs=top_scores,
            beam_indices=state.indices,
            topk_running_beam_indices=top_indices,
            is_early_stop_heuristic_unsatisfied=state.can_improve,
            is_sent_finished=state.is_finished,
            next_token_hits_stopping_criteria=hits,
            top_num_beam_mask=self._is_top,
            num_beams=self._width,
            cur_len=length,
            decoder_prompt_len=self._prompt_length,
            length_penalty=1.0,
            early_stopping="never",
        )
        can_improve = engine._check_early_stop_heuristic(
            is_early_stop_heuristic_unsatisfied=state.can_improve,
            running_beam_scores=running_scores,
            beam_scores=scores,
            is_sent_finished=is_finished,
            cur_len=length + 1,
            max_length=self._max_length,
            decoder_prompt_len=self._prompt_length,
            early_stopping="never",
            length_penalty=1.0,
        )
        engine._beam_search_has_unfinished_sequences(can_improve, is_finished, hits, "never")
        return PeerState(
            running, running_scores, running_indices, finished, scores, indices, is_finished, can_improve, length + 1
        )
