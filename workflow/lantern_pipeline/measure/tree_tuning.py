"""The job of rule tune_tree: times the trees that the config names, on prompts that no table reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lantern.decoding import Decoder
from lantern.prompts import Prompt
from lantern.text_encoders.base import TextEncoder
from lantern_pipeline.measure.latency import measure_latency


def unreported_prompts(candidates: Sequence[Prompt], reported: Sequence[Prompt], num: int) -> list[Prompt]:
    """The first `num` prompts whose text is in no reported set."""
    texts = {prompt.text for prompt in reported}
    found = [prompt for prompt in candidates if prompt.text not in texts][:num]
    if not found:
        raise ValueError(
            f"all {len(candidates)} prompts that trees could be tuned on are reported; ask for fewer (config key "
            "prompts.<name>.num), or name trees in place of tuned"
        )
    return found


def choose_tree(
    decoders: Sequence[Decoder], prompts: Sequence[Prompt], encoder: TextEncoder, *, run_seed: int
) -> dict[str, Any]:
    """Draws the prompts with each decoder in turn, at batch 1; returns the tree of the fastest with its choices, and
    what was timed of all. Decoders are of one method and differ in their trees; fastest is the one whose seconds over
    the first one's have the lowest median over prompts.
    """
    table, _ = measure_latency(decoders, prompts, encoder, run_seed=run_seed, num_warmup=1)
    table = table[table["stepping"] == decoders[0].runner.mode]  # graphs are timed eagerly, too
    specs = {decoder.spec.method_id: decoder.spec for decoder in decoders}
    seconds, forwards = (
        table.pivot(index="prompt_id", columns="method_id", values=name)[list(specs)]
        for name in ("seconds", "target_forwards")
    )
    best = specs[seconds.div(seconds.iloc[:, 0], axis=0).median().idxmin()]
    timed = {
        spec.tree: {
            "seconds": seconds[name].mean(),
            "tokens_per_forward": decoders[0].num_tokens / forwards[name].mean(),
        }
        for name, spec in specs.items()
    }
    return {"tree": best.tree, "tree_shape": asdict(best)["tree_shape"], "timed": timed}
