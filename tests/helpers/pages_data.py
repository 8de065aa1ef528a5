"""Test data of the HTML pages: timed images of five made-up methods, and image pairs of a made-up user study."""

import base64
import io
import json
import re

import numpy as np
import torch
from PIL import Image

from lantern.methods import MethodSpec
from lantern.prompts import Prompt
from lantern_pipeline.measure.speed.latency import TimedImages
from lantern_pipeline.pages import race, study
from lantern_pipeline.pages.study import CHECK, PAIR, Trial

SCRIPT = "<script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\"> & ring"
PROMPTS = [Prompt("p0", "a red ring"), Prompt("p1", SCRIPT), Prompt("p2", "a {{ data }} or {% if %}")]
RELAXED = {"acceptance": "additive", "k": 20, "neighbours": "l2", "delta": 0.1}
SPECS = [
    MethodSpec.of("coupled", tree="chain3", drafts="coupled", method_id="coupled"),
    MethodSpec.of("autoregressive", method_id="autoregressive"),
    MethodSpec.of("near", tree="chain3", drafts="coupled", **RELAXED, method_id="near"),
    MethodSpec.of("blind", tree="chain3", drafts="sampled", **RELAXED, method_id="blind"),
    MethodSpec.of("sampled", tree="chain3", drafts="sampled", method_id="sampled"),
]
NUM_TOKENS = 16
# Number of tokens of each forward pass; the fourth token of "near" is substituted.
LENGTHS = {"autoregressive": [1] * 16, "coupled": [1, 3, 4, 4, 4], "near": [1, 5, 5, 5]}
OTHER = [1, 3, 6, 6]


def padded(values, number_type):
    """Return values as a tensor of NUM_TOKENS entries, padded with zeros."""
    return torch.tensor([*values, *[0] * (NUM_TOKENS - len(values))], dtype=number_type)


def make_timed(temperature=1.0, gpu=None):
    """Return timed images of all methods and prompts. Each forward pass takes 100 ms.

    An image of prompt i consists of the code 10 * i. There are two exceptions. In images of the method "near", three
    codes are larger by 1. In images of "blind" and "sampled", all codes are larger by 2.
    """
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
            rows.append(
                (prompt.id, spec.method_id, codes, padded(lengths, torch.int16), seconds, is_draft, is_substituted)
            )
    prompt_ids, method_ids, *tensors = zip(*rows, strict=True)
    methods = {spec.method_id: spec.to_dict() for spec in SPECS}
    metadata = {"methods": methods, "temperature": temperature, "gpu": gpu, "num_threads": 1}
    return TimedImages(list(prompt_ids), list(method_ids), *map(torch.stack, tensors), metadata=metadata)


def draw(codes, side=8, shape=(4, 4)):
    """Return an image of 16 codes in `shape` whose lines have side / 4 pixels: code c is a patch of level 4 c + 40."""
    patches = (4 * codes + 40).to(torch.uint8).view(-1, *shape, 1).expand(-1, -1, -1, 3).numpy()
    return np.kron(patches, np.ones((1, side // 4, side // 4, 1), np.uint8))


def build_race(timed=None, side=8, shape=(4, 4)):
    """Return the HTML of the page that replays methods side by side."""
    positions = torch.arange(NUM_TOKENS).view(shape)
    return race.build_page(timed or make_timed(), PROMPTS, lambda codes: draw(codes, side, shape), positions)


NUM_PAIRS, NUM_CHECKS = 8, 4
METHODS = [
    {"method_id": "lantern-k20", "label": "LANTERN k 20", "num_pairs": NUM_PAIRS, "num_ties": 0},
    {"method_id": "proximity-k5", "label": "proximity k 5", "num_pairs": NUM_PAIRS, "num_ties": 0},
]
KINDS = [(PAIR, method["method_id"]) for method in METHODS for _ in range(NUM_PAIRS)] + [(CHECK, "")] * NUM_CHECKS
# Trial i shows the grey levels 5 i + 1 (autoregressive or fitting) and 5 i + 2.
TRIALS = [
    Trial(
        kind,
        SCRIPT if i == 0 else f"caption {i}",
        f"seen-{i}",
        method_id,
        np.stack([np.full((6, 6, 3), 5 * i + side, np.uint8) for side in (1, 2)]),
    )
    for i, (kind, method_id) in enumerate(KINDS)
]


def build_study(seed=0, trials=TRIALS, question="is {{ data }} or {# this #} nicer?"):
    """Return the HTML of the user study."""
    return study.build_page(trials, METHODS, question=question, seed=seed)


def data_of(html):
    """Return the data that a page's script reads, parsed from its JSON block."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def pixels_of(uri):
    """Return the pixels of an image that is stored as a data URI."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))
