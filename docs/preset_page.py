"""Hook of mkdocs. One page of the site shows every preset: papers, acceptance, code and draft tree.

The page is made from `lantern.registry` and from the docstrings of the classes that decide which drafts are
accepted.
"""

from __future__ import annotations

import inspect
import io
import re
from itertools import takewhile
from pathlib import Path

import matplotlib.pyplot as plt
from draft_trees import draw, heights
from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import lantern
from lantern.acceptance.rejection import ByRejection
from lantern.api import Model
from lantern.decoding import Decoder
from lantern.draft_tree import DraftTree
from lantern.extensions import load_class
from lantern.generation import decode_timed
from lantern.methods import MethodSpec
from lantern.parameters import PARAMETERS
from lantern.prompts import Prompt
from lantern.registry import PRESETS, acceptance_of, drafts_of
from lantern.tree_shapes import Choices, DynamicTreeOptions, JointTree

METHODS = Path(__file__).with_name("methods.md")
PROMPT = "a large red circle on grass"
# No shipped model has shift heads, which the others need.
SHOWN = {name: row for name, row in PRESETS.items() if not drafts_of(row.parts.get("drafts")).trained}
# Values of the parameters that presets leave open.
VALUES = {"k": 20, "delta": 0.1, "lambda_": 5, "omega": 1.1, "weight": 0.8, "budget": 0.1}
INTRODUCTION = """# Every method

Each preset with its draft tree, its acceptance and its papers, from its row in `lantern/registry.py` or
`lantern_methods/__init__.py` and from docstrings. [Methods](methods.md) has their rules as formulas, and the
[glossary](glossary.md) defines the terms. `x` is a draft, `t(x)` its probability under the target, and `p(x)` the
probability with which it was sampled. The trees are those of the embedded model, with the root on the left. A dynamic
tree is that of the first step of an image. SSD is not shown: it needs shift heads, which `experiments/peers.yaml`
trains."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page and its pictures."""
    text, pictures = preset_page(lantern.load("embedded"))
    files.append(File.generated(config, "presets.md", content=text))
    for name, picture in pictures.items():
        files.append(File.generated(config, name, content=picture))
    return files


def preset_page(model: Model) -> tuple[str, dict[str, str]]:
    """Return the page.

    Args:
        model: the model whose draft trees the page shows.

    Returns:
        (the page in Markdown; file name of each picture on it -> the picture, SVG).
    """
    blocks, pictures = [INTRODUCTION], {}
    for name, row in SHOWN.items():
        drafts, acceptance = drafts_of(row.parts.get("drafts")), acceptance_of(row.parts.get("acceptance", "exact"))
        wanted = {**drafts.parameters, **acceptance.parameters}
        values = {key: VALUES[key] for key in wanted if key not in row.parts}
        decoder = model.make_decoder(name, **values)
        explained = f"\n- [Rule, exactness, source](methods.md#{section_of(name)})" if decoder.spec.drafts else ""
        blocks += [f"## {row.label}", describe(name, decoder.spec) + explained, *accepts(decoder)]
        shape = decoder.spec.tree_shape
        if shape is not None:
            is_static = not isinstance(shape, DynamicTreeOptions | JointTree)
            choices = decoder.spec.static_choices if is_static else choices_of(first_tree(model, decoder))
            picture = f"tree_{name}.svg"
            pictures[picture] = draw_tree(choices)
            blocks.append(f"![Draft tree of {row.label}]({picture})")
        arguments = "".join(f", {key}={value!r}" for key, value in values.items())
        blocks.append(
            f'```python\nimport lantern\n\nmodel = lantern.load("embedded")\nprompt = "{PROMPT}"\n'
            f'images = model.generate(prompt, method="{name}"{arguments})\n```'
        )
    return "\n\n".join(blocks), pictures


def section_of(preset: str) -> str:
    """Return the anchor of a preset's section in docs/methods.md, whose heading ends with the names of presets."""
    headings = re.findall(r"^#+ (.*)", METHODS.read_text(), re.M)
    (heading,) = [heading for heading in headings if f"`{preset}`" in heading]
    return slugify(heading.replace("`", ""), "-")


def describe(name: str, spec: MethodSpec) -> str:
    """Return a list of a preset's parts, output distribution, parameters and papers, in Markdown."""
    parts = [f"`{part}={getattr(spec, part)}`" for part in ("tree", "drafts", "acceptance") if getattr(spec, part)]
    output = "tokens of autoregressive decoding" if spec.keeps_tokens(1.0) else "distribution of the target"
    papers = dict.fromkeys(paper for paper in (spec.drafts_row.paper, spec.acceptance_row.paper) if paper)
    lines = [
        f"- Preset `{name}`: {', '.join(parts)}",
        f"- Output: {output if spec.is_exact else 'not the distribution of the target'}",
    ]
    if spec.parameters:
        stated = [f"`{key}={value}` ({PARAMETERS[key].meaning})" for key, value in spec.parameters.items()]
        lines.append(f"- Parameters: {', '.join(stated)}")
    if papers:
        linked = re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", "; ".join(papers))
        lines.append(f"- Source: {linked}")
    return "\n".join(lines)


def accepts(decoder: Decoder) -> list[str]:
    """Return paragraphs about how a decoder accepts drafts, from the docstrings of its classes."""
    if decoder.spec.drafts is None:
        return []
    verifier = getattr(decoder, "verifier", decoder)  # ZipAR's decoder has no drafts to verify
    classes = [type(verifier)]
    if type(verifier) is ByRejection or decoder.spec.acceptance != "exact":
        classes.append(load_class(decoder.spec.acceptance_row.path))
    paragraphs = []
    for kind in classes:
        documented = (inspect.getdoc(kind) or "").split("\n\n")
        paragraphs += takewhile(lambda text: not re.match(r"(Args|Attributes|Source|Raises):", text), documented)
    return paragraphs


def first_tree(model: Model, decoder: Decoder) -> DraftTree:
    """Return the draft tree of the first step of an image."""
    trees: list[DraftTree] = []
    decoder.observer = lambda outcome: trees.append(outcome.proposal.tree)
    decode_timed(decoder, [Prompt("0", PROMPT)], model.encoder, run_seed=0)
    return trees[0]


def choices_of(tree: DraftTree) -> Choices:
    """Return the paths from the root of all nodes of a batch's first tree, without the root."""
    depths = tree.depths[0].tolist()
    return tuple(
        tuple(tree.ranks[0, path[1 : depth + 1]].tolist())
        for path, depth in zip(tree.paths[0], depths, strict=True)
        if depth > 0
    )


def draw_tree(choices: Choices) -> str:
    """Draw a draft tree as SVG. The distance between nodes is the same in all pictures.

    Args:
        choices: path from the root of each node.
    """
    num_lines = max(heights(choices).values()) + 1
    depth = max(map(len, choices))
    figure, axes = plt.subplots(figsize=(0.28 * (depth + 1), 0.14 * (num_lines + 1)))
    figure.subplots_adjust(0, 0, 1, 1)
    draw(choices, axes)
    axes.set_xlim(-0.5, depth + 0.5)
    axes.set_ylim(num_lines, -1)
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    plt.close(figure)
    return picture.getvalue()
