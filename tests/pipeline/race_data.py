"""Timed images of four made-up methods, 4 x 4 tokens, for the tests of the race's page."""

import numpy as np
import torch

from lantern.methods import MethodSpec
from lantern.prompts import Prompt
from lantern_pipeline.measure.latency import TimedImages

SCRIPT = "<script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\"> & ring"
PROMPTS = [Prompt("p0", "a red ring"), Prompt("p1", SCRIPT), Prompt("p2", "a [[data]] or [[policy]]")]
RELAXED = {"acceptance": "additive", "k": 20, "neighbours": "l2", "delta": 0.1}
SPECS = [
    MethodSpec.of("coupled", tree="chain3", drafts="coupled", method_id="coupled"),
    MethodSpec.of("autoregressive", method_id="autoregressive"),
    MethodSpec.of("near", tree="chain3", drafts="coupled", **RELAXED, method_id="near"),
    MethodSpec.of("blind", tree="chain3", drafts="sampled", **RELAXED, method_id="blind"),
    MethodSpec.of("sampled", tree="chain3", drafts="sampled", method_id="sampled"),
]
NUM_TOKENS = 16
# Tokens of each forward; the fourth token of "near" is substituted.
LENGTHS = {"autoregressive": [1] * 16, "coupled": [1, 3, 4, 4, 4], "near": [1, 5, 5, 5]}
OTHER = [1, 3, 6, 6]


def padded(values, number_type):
    return torch.tensor([*values, *[0] * (NUM_TOKENS - len(values))], dtype=number_type)


def make_timed(temperature=1.0, gpu=None):
    """Each forward takes 100 ms; codes of prompt i are 10 i, but for 3 tokens of "near" and all of "blind"."""
    rows = []
    for number, prompt in enumerate(PROMPTS):
        for spec in SPECS:
            lengths = LENGTHS.get(spec.method_id, OTHER)
            codes = torch.full((NUM_TOKENS,), 10 * number, dtype=torch.int32)
            codes[3:6] += spec.method_id == "near"
            codes += 2 * (spec.method_id in ("blind", "sampled"))
            is_draft = torch.ones(NUM_TOKENS, dtype=torch.bool)
            is_draft[torch.tensor(lengths).cumsum(0) - 1] = False
            is_substituted = torch.arange(NUM_TOKENS) == (3 if spec.method_id == "near" else -1)
            seconds = padded([0.1] * len(lengths), torch.float32)
            rows.append((prompt.id, spec, codes, padded(lengths, torch.int16), seconds, is_draft, is_substituted))
    ids, specs, *tensors = zip(*rows, strict=True)
    metadata = {
        "methods": {spec.method_id: spec.to_dict() for spec in SPECS},
        "temperature": temperature,
        "gpu": gpu,
        "num_threads": 1,
    }
    return TimedImages(
        list(ids), [spec.method_id for spec in specs], *(torch.stack(found) for found in tensors), metadata=metadata
    )


def draw(codes, side=8):
    """Codes c of an image as patches of grey level 4 c + 40."""
    patches = (4 * codes + 40).to(torch.uint8).view(-1, 4, 4, 1).expand(-1, -1, -1, 3).numpy()
    return np.kron(patches, np.ones((1, side // 4, side // 4, 1), np.uint8))
