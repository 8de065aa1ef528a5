"""The assisted generation of transformers (speculative sampling), as a sampler that an audit can test.

The models of a world become language models of transformers, whose ids are a prompt and the codes after it.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from typing_extensions import override

from lantern_audit.world import World


def assisted_generation(world: World, prompts: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Sample sequences by the `generate` of transformers, with the draft model as its `assistant_model`.

    It is a `Sampler`, which samples one sequence at a time.

    Raises:
        ValueError: the world has more prompts than codes.
    """
    if world.num_prompts > world.vocab_size:
        raise ValueError(
            f"num_prompts of the world must be <= {world.vocab_size} for transformers, where a prompt is a code, got "
            f"{world.num_prompts}; make fewer"
        )
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # hides warnings of `generate` about calls that it makes itself
    target = language_model(world, world.target)
    draft = language_model(world, world.draft)
    # transformers filters by a top_k of 50 unless told otherwise.
    options = {"assistant_model": draft, "do_sample": True, "top_k": 0, "max_new_tokens": world.num_tokens}
    tokens = []
    try:
        with torch.random.fork_rng(devices=[]):
            for prompt, seed in zip(prompts[:, None, None], seeds.tolist(), strict=True):  # a prompt is (1, 1)
                torch.manual_seed(seed)
                tokens.append(target.generate(prompt, **options)[:, 1:])  # without the prompt
    finally:
        logging.set_verbosity(verbosity)
    return torch.cat(tokens)


def language_model(world: World, table: torch.Tensor) -> Any:
    """Return a language model of transformers that reads its probabilities from a table instead of computing them.

    As in `TableTarget`, the cache holds terms, whose sum is the row of the table, (contexts, vocab).
    """
    from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutputWithPast

    # Versions of transformers name the cache differently. New ones know the old name, too.
    is_new = "cache" in signature(CausalLMOutputWithPast).parameters
    names = ("cache", "past_key_values") if is_new else ("past_key_values",)

    class TableLM(PreTrainedModel, GenerationMixin):
        config_class = PretrainedConfig

        def __init__(self, config: PretrainedConfig) -> None:
            super().__init__(config)
            self.log_probs = torch.nn.Parameter(table.log().float(), requires_grad=False)
            # The first id is the prompt. Its place value is the number of contexts of a prompt.
            of_prompt = torch.tensor([len(table) // world.num_prompts])
            self.place_values = torch.cat([of_prompt, world.place_values])

        @override
        def forward(self, input_ids: torch.Tensor, **others: Any) -> CausalLMOutputWithPast:
            given = next((others[name] for name in names if others.get(name) is not None), None)
            cache = DynamicCache() if given is None else given
            begin = cache.get_seq_length()
            positions = torch.arange(begin, begin + input_ids.shape[1])
            # The term of a prompt is place value * id, that of a code is place value * (code + 1).
            values = self.place_values[positions] * (input_ids + (positions > 0))
            # The terms are both keys and values of one head with one channel.
            kept, _ = cache.update(values[:, None, :, None], values[:, None, :, None], 0)
            contexts = kept[:, 0, :, 0].cumsum(1)[:, begin:]  # (batch, n): the row after each new id
            named: dict[str, Any] = {names[0]: cache}
            return CausalLMOutputWithPast(logits=self.log_probs[contexts], **named)

    sizes = {"vocab_size": world.vocab_size, "num_hidden_layers": 1}
    # Without an eos_token_id, no code ends a sequence early.
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    return TableLM(PretrainedConfig(**sizes, **ids)).eval()
