"""The assisted generation of transformers (speculative sampling), as a sampler that an audit can test."""

from __future__ import annotations

from typing import Any

import torch

from lantern.auditing.world import World
from lantern.models.adapter import CACHE_NAMES, cache_name


def assisted_generation(world: World, prompts: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Sample sequences by the `generate` of transformers, with the draft model as its `assistant_model`.

    Sequences are sampled one at a time.

    Args:
        world: the target and the draft model, whose probabilities are in tables.
        prompts: prompts, int64 (batch,).
        seeds: seeds of torch's generator, int64 (batch,).

    Returns:
        The sampled tokens, int64 (batch, num_tokens).

    Raises:
        ValueError: the world has more prompts than codes.
        ModuleNotFoundError: transformers is not installed.
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
    options = {"assistant_model": draft, "do_sample": True, "top_k": 0, "max_new_tokens": world.num_tokens}
    tokens = []
    try:
        with torch.random.fork_rng(devices=[]):
            for prompt, seed in zip(prompts[:, None, None], seeds.tolist(), strict=True):
                torch.manual_seed(seed)
                tokens.append(target.generate(prompt, **options)[:, 1:])
    finally:
        logging.set_verbosity(verbosity)
    return torch.cat(tokens)


def language_model(world: World, table: torch.Tensor) -> Any:
    """Return a language model of transformers that reads its probabilities from a table instead of computing them.

    The input is a prompt, which is one id, and the tokens after it. Together they are the context, which has one row in
    the table. The number of the row is a sum of one term per id. The key/value cache holds these terms in place of
    attention values.

    Args:
        world: the world that the table belongs to.
        table: distribution after each context, (contexts, vocab): `World.target` or `World.draft`.

    Raises:
        ModuleNotFoundError: transformers is not installed.
    """
    from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutputWithPast

    output_name = cache_name(CausalLMOutputWithPast)

    class TableLM(PreTrainedModel, GenerationMixin):
        """A language model without layers. The ids so far select a row of `table`. The logits are its logarithm."""

        config_class = PretrainedConfig

        def __init__(self, config: PretrainedConfig) -> None:
            super().__init__(config)
            self.log_probs = torch.nn.Parameter(table.log().float(), requires_grad=False)
            of_prompt = torch.tensor([len(table) // world.num_prompts])
            self.place_values = torch.cat([of_prompt, world.place_values])

        def forward(self, input_ids: torch.Tensor, **others: Any) -> CausalLMOutputWithPast:
            """Return the logits of the token after each of `input_ids`.

            Args:
                input_ids: ids after those in the cache, int64 (batch, n).
                others: further arguments of `generate`. Of these, the cache of the earlier ids is used.
            """
            given = next((others[name] for name in CACHE_NAMES if others.get(name) is not None), None)
            cache = DynamicCache() if given is None else given
            begin = cache.get_seq_length()
            positions = torch.arange(begin, begin + input_ids.shape[1])
            values = self.place_values[positions] * (input_ids + (positions > 0))
            kept, _ = cache.update(values[:, None, :, None], values[:, None, :, None], 0)
            contexts = kept[:, 0, :, 0].cumsum(1)[:, begin:]
            named: dict[str, Any] = {output_name: cache}
            return CausalLMOutputWithPast(logits=self.log_probs[contexts], **named)

    sizes = {"vocab_size": world.vocab_size, "num_hidden_layers": 1}
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    return TableLM(PretrainedConfig(**sizes, **ids)).eval()
