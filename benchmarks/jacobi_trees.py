"""Fit the coefficients that rank Jacobi drafts, and choose the shapes of their trees, on images of training captions.

    python benchmarks/jacobi_trees.py --results results/embedded           # prints the coefficients and the shapes

The coefficients are `FITTED` in lantern_methods/jacobi_tree.py. The shapes are those of lantern_methods/__init__.py and
experiments/nodes.yaml. No table of results uses these captions.

A *result* is a preceding token and the target's best codes after it, from an earlier step. A mixture of the results of
a position predicts its token. The coefficients of the mixture are fitted by maximum likelihood. An example for the fit
is the position after an accepted node: its results, and the token that was emitted there.

The shapes are grown in rounds. A round decodes with a large tree and counts how often each node is accepted. It keeps
the nodes that are accepted most often, and adds the next sibling and the first child of each of them. The final shape
has a *spine*, the path on which every node is the best draft of its parent, and the nodes accepted most often.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from report import ROOT

from lantern.decoding import TreeDecoder, make_decoder
from lantern.draft_tree import reached_nodes
from lantern.generation import generate_records
from lantern.methods import MethodSpec
from lantern.prompts import Prompt, TextEncoder
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Outcome
from lantern.tree_shapes import Choices, check_choices, tree_choices
from lantern_methods.hybrid import HybridTreeDrafter
from lantern_methods.jacobi_tree import (
    DRAFTED,
    FITTED,
    NUM_RESULTS,
    OLDEST,
    DraftedCoefficients,
    JacobiTreeDrafter,
    PoolMixture,
    ResultCoefficients,
)
from lantern_models.checkpoints.decoding_models import load_decoding_models

# Drafts -> number of nodes of a shape -> length of its spine.
SPINES = {
    "jacobi": {16: 12, 32: 16, 50: 22, 100: 26},
    "hybrid": {9: 7, 16: 12, 32: 16, 50: 22, 100: 26},
}
DEEPEST = 26
LARGEST = 210  # nodes of the tree of a round
NUM_ROUNDS = 5
NUM_STEPS = 400  # of the optimiser
BATCH = 8
NO_RESULT = -1  # kind
FREE = {"jacobi": (0, 1, 2, 3, 4), "hybrid": (5,)}  # facts whose numbers are fitted


@dataclass
class Run:
    """Models, training captions and sampling settings with which images are decoded.

    Attributes:
        models: the target and the draft model.
        encoder: text encoder of the captions.
        prompts: training captions.
        sampling: temperature, top-k, top-p and guidance.
    """

    models: DecodingModels
    encoder: TextEncoder
    prompts: list[Prompt]
    sampling: SamplingConfig

    def decoder(self, drafts: str, choices: Choices, mixture: PoolMixture) -> TreeDecoder:
        """Return a decoder with a static tree of Jacobi or hybrid drafts.

        Args:
            drafts: "jacobi" or "hybrid".
            choices: path of each node of the tree.
            mixture: coefficients that rank the drafts.
        """
        spec = MethodSpec.of("grown", tree="grown", drafts=drafts, tree_shape=choices)
        decoder = make_decoder(self.models, spec, self.sampling)
        pool_of(decoder).use(mixture)
        return decoder

    def decode(self, decoder: TreeDecoder, seed: int) -> float:
        """Decode an image per caption, and return the mean number of tokens per forward pass."""
        records = generate_records(decoder, self.prompts, self.encoder, run_seed=seed, batch_size=BATCH)
        return float((decoder.num_tokens / records.target_forwards.double()).mean())


def pool_of(decoder: TreeDecoder) -> JacobiTreeDrafter:
    """Return the drafter that stores the pool, the results of earlier steps from which Jacobi drafts are made."""
    drafter = decoder.drafter
    return drafter.jacobi if isinstance(drafter, HybridTreeDrafter) else drafter


class Examples:
    """Observer of a decoder that collects the examples for the fit.

    An example is the position after an accepted node: its results (best codes of earlier steps), and which of these
    codes is the token that was emitted there.

    Args:
        pool: drafter that ranks the codes of the results. Its method `mix` is replaced, to record the arguments.
    """

    def __init__(self, pool: JacobiTreeDrafter) -> None:
        self.pool = pool
        self.kinds: list[torch.Tensor] = []  # (results,) each
        self.keys: list[torch.Tensor] = []  # (results, codes) each
        self.is_right: list[torch.Tensor] = []  # (results, codes) each
        self._calls: list[tuple[torch.Tensor, ...]] = []
        self._mix = pool.mix
        pool.mix = self.mix

    def mix(self, *results: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Record the arguments of the drafter's method `mix`, and call it."""
        self._calls.append(results)
        return self._mix(*results)

    def __call__(self, outcome: Outcome) -> None:
        """Collect an example after every accepted node that has children. A decoder calls this as its `observer`."""
        num_tokens = self.pool.config.num_image_tokens
        for depth, nodes in enumerate(self.pool.tree.levels):
            for number, node in enumerate(nodes.tolist()):
                is_example = (outcome.path[:, depth] == node) & (depth <= outcome.num_accepted)
                is_example &= outcome.scores.positions[:, node] < num_tokens
                if depth < self.pool.num_given:  # one call per depth, with a set of results per parent
                    kinds, codes, keys = (part[:, number] for part in self._calls[depth])
                    kinds = kinds[:, 0]
                else:
                    ahead = depth - self.pool.num_given
                    kinds, codes, keys = (part[:, ahead] for part in self._calls[-1])
                    kinds = kinds[:, number]
                for row in is_example.nonzero()[:, 0].tolist():
                    missing = NUM_RESULTS + 1 - kinds.shape[1]
                    self.kinds.append(F.pad(kinds[row], (0, missing), value=NO_RESULT))
                    self.keys.append(F.pad(keys[row], (0, 0, 0, missing)))
                    is_right = codes[row] == outcome.emitted[row, depth]
                    self.is_right.append(F.pad(is_right, (0, 0, 0, missing)))
        self._calls.clear()


def facts_of(kinds: torch.Tensor) -> torch.Tensor:
    """Return the inputs of the mixture's linear functions for each kind of result.

    These are the five inputs that `ResultCoefficients` lists, and whether the result is from a draft model (DRAFTED).

    Args:
        kinds: kinds of results, integer (...), see `PoolMixture.table`.

    Returns:
        float32 (..., 6).
    """
    age = (kinds % (OLDEST + 1)).float()
    is_newest = kinds // (OLDEST + 1) % 2
    fits = kinds // (2 * (OLDEST + 1))
    facts = torch.stack([fits, age == 1, is_newest, age / 10, torch.ones_like(age)], dim=-1)
    is_drafted = (kinds == DRAFTED)[..., None].float()
    return torch.cat([facts * (1 - is_drafted), is_drafted], dim=-1)


def fit(examples: Examples, mixture: PoolMixture, free: Sequence[int]) -> tuple[PoolMixture, float]:
    """Fit some coefficients of a mixture by maximum likelihood.

    If no result contains the emitted token, its likelihood is the probability of all other codes.

    Args:
        examples: collected examples, of which the likelihood is maximised.
        mixture: coefficients to start from.
        free: indices of the inputs (see `facts_of`) whose coefficients are fitted.

    Returns:
        (mixture with the largest likelihood, rounded; mean log-likelihood).
    """
    kinds = torch.stack(examples.kinds)
    keys = torch.stack(examples.keys)
    is_right = torch.stack(examples.is_right)
    facts = facts_of(kinds)
    is_known = is_right.flatten(1).any(1)
    parts = (mixture.weight, mixture.sharpness, mixture.other)
    start = torch.tensor([(*part, drafted) for part, drafted in zip(parts, mixture.drafted, strict=True)]).T
    is_free = torch.zeros(len(start), 1)
    is_free[list(free)] = 1.0
    change = torch.zeros_like(start).requires_grad_()
    optimiser = torch.optim.Adam([change], lr=0.03)
    for _ in range(NUM_STEPS):
        weight, sharpness, other = (facts @ (start + is_free * change)).unbind(-1)
        weight = weight.masked_fill(kinds == NO_RESULT, -torch.inf)
        logits = torch.cat([keys * sharpness.exp()[..., None], other[..., None]], dim=-1)
        probs = logits.softmax(-1) * weight.softmax(-1)[..., None]
        right = torch.where(is_known, (probs[..., :-1] * is_right).flatten(1).sum(1), probs[..., -1].sum(1))
        likelihood = right.clamp(min=1e-9).log().mean()
        optimiser.zero_grad()
        (-likelihood).backward()
        optimiser.step()
    numbers = (start + is_free * change).detach()
    columns = [tuple(round(value, 2) for value in column) for column in numbers.T.tolist()]
    weight, sharpness, other = columns
    drafted = DraftedCoefficients(weight[5], sharpness[5], other[5])
    # A constant would change the weights of all results alike, and so change nothing.
    functions = ResultCoefficients(*weight[:4]), ResultCoefficients(*sharpness[:5]), ResultCoefficients(*other[:5])
    return PoolMixture(*functions, drafted), likelihood.item()


class AcceptedNodes:
    """Observer of a decoder that counts how often each node of the draft tree is accepted."""

    def __init__(self, choices: Choices) -> None:
        self.paths = [(), *check_choices(choices)]
        self.counts: Counter[tuple[int, ...]] = Counter()

    def __call__(self, outcome: Outcome) -> None:
        """Count the accepted nodes of one step. Nodes beyond the end of an image are left out."""
        num_tokens = outcome.scores.noise.num_positions
        tree = outcome.proposal.tree
        reached = reached_nodes(tree, outcome.is_accepted) & (outcome.scores.positions - 1 < num_tokens)
        reached &= outcome.scores.positions[:, :1] < num_tokens  # the image is not complete
        for node in reached.nonzero()[:, 1].tolist():
            self.counts[self.paths[node]] += 1


def choose(counts: Counter[tuple[int, ...]], num_nodes: int, spine: int) -> Choices:
    """Choose the shape of a tree: its spine, and the nodes that were accepted most often.

    A node is chosen together with all nodes on its path and with their better siblings.

    Args:
        counts: path of a node -> how often it was accepted.
        num_nodes: largest number of nodes.
        spine: length of the spine, the path on which every node is the best draft of its parent.

    Returns:
        Path of each node.
    """
    chosen = {(0,) * length for length in range(1, spine + 1)}
    for path, _ in sorted(counts.items(), key=lambda item: (-item[1], len(item[0]), item[0])):
        needed = {(*path[:depth], rank) for depth, last in enumerate(path) for rank in range(last + 1)}
        if len(chosen | needed) <= num_nodes:
            chosen |= needed
    return tuple(check_choices(sorted(chosen)))


def grow(run: Run, drafts: str, mixture: PoolMixture, seed: int) -> Counter[tuple[int, ...]]:
    """Grow a large tree in some rounds, and return how often each of its nodes is accepted.

    Args:
        run: models and captions.
        drafts: "jacobi" or "hybrid".
        mixture: coefficients that rank the drafts.
        seed: seed of the noise.

    Returns:
        Path of a node -> number of acceptances.
    """
    choices = tree_choices("chain20k2d3")
    for number in range(NUM_ROUNDS):
        decoder = run.decoder(drafts, choices, mixture)
        accepted = AcceptedNodes(choices)
        decoder.observer = accepted
        tokens = run.decode(decoder, seed)
        print(f"round {number + 1}: {len(choices)} nodes, {tokens:.3f} tokens per forward", flush=True)
        if number + 1 == NUM_ROUNDS:
            break
        kept = choose(accepted.counts, LARGEST // 2, DEEPEST)
        near = {(*path[:-1], path[-1] + 1) for path in kept} | {(*path, 0) for path in kept}
        near = {path for path in near if len(path) <= DEEPEST and max(path) < 10}
        choices = tuple(check_choices(sorted({*kept, *near})))
    return accepted.counts


def leaves(choices: Choices) -> str:
    """Write a shape in short, as lantern_methods/__init__.py has it: the length of the spine, and paths of some nodes.

    The other nodes follow from these: they are on the paths, or better siblings of nodes on them.
    """
    paths = set(choices)
    spine = max(len(path) for path in paths if not any(path))
    kept = [
        path
        for path in check_choices(sorted(paths))
        if any(path) and (*path, 0) not in paths and (*path[:-1], path[-1] + 1) not in paths
    ]
    return f"{spine}: " + " ".join("".join(map(str, path)) for path in kept)


def load(options: argparse.Namespace) -> Run:
    """Load the models and the last training captions of a run."""
    from lantern_pipeline.data.text_encoders import make_text_encoder
    from lantern_pipeline.schema.run_config import TextSettings

    config = yaml.safe_load(options.config.read_text())
    seed = config["repeats"]["training_seeds"][0]
    files = [options.results / kind / f"s{seed}" / "model.safetensors" for kind in ("target", "drafter")]
    lines = (options.results / "captions" / "train.jsonl").read_text().splitlines()[-options.captions :]
    return Run(
        load_decoding_models(*files),
        make_text_encoder(TextSettings.model_construct(**config["text"]), config["data"]["source"]),
        [Prompt(**json.loads(line)) for line in lines],
        SamplingConfig(temperature=1.0, **config["sampling"]),
    )


def main() -> None:
    """Fit the coefficients and grow the shapes, for the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results/embedded"), help="folder of a run with models")
    parser.add_argument("--config", type=Path, default=ROOT / "config.yaml", help="config of that run")
    parser.add_argument("--captions", type=int, default=96, help="number of training captions, the last ones")
    parser.add_argument("--drafts", nargs="+", choices=list(SPINES), default=list(SPINES), help="which drafts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = load(options)
    mixture = FITTED
    for drafts in options.drafts:
        decoder = run.decoder(drafts, tree_choices("jacobi_50"), mixture)
        examples = decoder.observer = Examples(pool_of(decoder))
        tokens = run.decode(decoder, seed=0)
        mixture, likelihood = fit(examples, mixture, FREE[drafts])
        print(f"{drafts}: {len(examples.kinds)} examples at {tokens:.3f} tokens per forward")
        print(f"log-likelihood {likelihood:.3f}, {mixture}", flush=True)
        counts = grow(run, drafts, mixture, seed=1)
        for num_nodes, spine in SPINES[drafts].items():
            choices = choose(counts, num_nodes, spine)
            tokens = run.decode(run.decoder(drafts, choices, mixture), seed=0)
            print(f"{num_nodes} nodes, {tokens:.3f} tokens per forward, {leaves(choices)}", flush=True)


if __name__ == "__main__":
    main()
