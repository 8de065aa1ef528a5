"""Build the live page: the embedded model generates images in the reader's browser, by three methods side by side.

    python docs/live/build.py demo

The *embedded model* is the small model that is shipped with Lantern. The page is a folder of static files: an HTML
page, JavaScript modules and a WebAssembly kernel from this folder, the weights of the embedded model, and tables that
only Python computes.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import lantern
from lantern.codebook import nearest_codes
from lantern.io import save_tensors
from lantern.methods import make_method
from lantern.noise import SLOT_BLOCK, key_of
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.figures import style
from lantern_pipeline.pages.html_page import TEMPLATES, to_json
from lantern_pipeline.tables.method_labels import method_name
from lantern_pipeline.world.scenes import BACKGROUNDS, COLOURS, RELATIONS, SHAPES, SIZES, Scene, caption

FILES = Path(__file__).resolve().parent
MODEL = FILES.parents[1] / "models" / "embedded"
WEIGHTS = ("target.safetensors", "drafter.safetensors", "tokenizer.safetensors")
# Methods of the page, in its order: preset and parameters, as for `lantern.Model.generate`.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "autoregressive": ("autoregressive", {}),
    "jacobi": ("jacobi", {}),
    "lantern_chain": ("lantern", {"tree": "chain5", "drafts": "sampled", "k": 20, "delta": 0.1}),
}
PROMPT_ID = "0"  # id of the only prompt of a call of `lantern.Model.generate`
STREAMS = ("target", "draft", "accept")  # of noise, see `lantern.noise`
NUM_SEEDS = 100
MOST_NEAREST = 60  # largest k of the page


def write_page(folder: Path) -> None:
    """Write the live page into a folder, which is made if it does not exist."""
    model = lantern.load(MODEL)
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*FILES.glob("*.js"), FILES / "kernel.wasm", *(MODEL / name for name in WEIGHTS)]:
        shutil.copyfile(path, folder / path.name)
    assert isinstance(model.encoder, WordEmbeddingEncoder)
    # Features come from torch's generator, which a browser lacks. Hence the page has those of all captions.
    contexts = _contexts(model.encoder.phrase_words)
    tables = {
        "features": torch.stack([model.encoder.feature(context.split()) for context in contexts]),
        "signs": model.encoder.signs,
        "nearest_codes": nearest_codes(model.tokenizer.codebook.detach(), MOST_NEAREST),
    }
    save_tensors(folder / "tables.safetensors", tables)
    data = {
        "methods": [_describe_method(id, preset, parts) for id, (preset, parts) in METHODS.items()],
        "sampling": {"guidance": model.sampling.cfg_scale, "topK": model.sampling.top_k},
        # Integers below 2^64, as texts: JavaScript's numbers are exact up to 2^53. Equal keys give Python's images.
        "keys": [
            {stream: [str(part) for part in key_of(seed, PROMPT_ID, stream)] for stream in STREAMS}
            for seed in range(NUM_SEEDS)
        ],
        # Random numbers per position: the page must skip as many as Lantern to read the same stream.
        "slots": SLOT_BLOCK,
        "mostNearest": MOST_NEAREST,
        "contexts": contexts,
        "contextWords": model.encoder.phrase_words,
        "words": {
            "size": list(SIZES),
            "colour": list(COLOURS),
            "shape": list(SHAPES),
            "relation": list(RELATIONS),
            "background": list(BACKGROUNDS),
        },
    }
    # The template extends the shell of the pipeline's pages.
    template = TEMPLATES.from_string((FILES / "page.html").read_text(encoding="utf-8"))
    (folder / "index.html").write_text(template.render(data=to_json(data)), encoding="utf-8")


def _describe_method(id: str, preset: str, parts: dict[str, Any]) -> dict[str, Any]:
    spec = make_method(preset, **parts)
    return {
        "id": id,
        "label": method_name(id),
        "colour": style.method_look(id)["color"],
        # The static trees of METHODS are chains, as deep as they have nodes.
        "depth": 0 if spec.drafts is None else len(spec.static_choices),
        "k": parts.get("k"),
        "delta": parts.get("delta"),
    }


def _contexts(num_words: int) -> list[str]:
    """Return all contexts in captions of the shapes dataset: a word and up to `num_words - 1` words before it."""
    # A context has one feature wherever it stands: the signs of positions are a table of their own.
    objects = [(size, colour, shape) for size in SIZES for colour in COLOURS for shape in SHAPES]
    single = (Scene(background, (item,)) for background in BACKGROUNDS for item in objects)
    # One background suffices for pairs: it follows the last object, and the embedded model's three words ("circle on
    # sand") reach no further back than that object, so that `single` has all contexts with a background.
    background = BACKGROUNDS[0]
    pairs = (Scene(background, (one, other), name) for name in RELATIONS for one in objects for other in objects)
    return sorted({context for scene in (*single, *pairs) for context in _contexts_of(caption(scene), num_words)})


def _contexts_of(text: str, num_words: int) -> Iterable[str]:
    words = text.split()
    return (" ".join(words[max(0, end - num_words) : end]) for end in range(1, len(words) + 1))


if __name__ == "__main__":
    folder = sys.argv[1]
    write_page(Path(folder))
    print(f"wrote {folder}: run `python -m http.server --directory {folder}` and open http://localhost:8000")
