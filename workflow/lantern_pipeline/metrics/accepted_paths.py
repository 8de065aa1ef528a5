"""Which drafts a method accepts: the ranks of the accepted path of every step."""

from __future__ import annotations

from collections.abc import Sequence

from lantern.decoding import Decoder
from lantern.draft_tree import DraftTree, reached_nodes
from lantern.generation import decode_timed
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.step import Outcome
from lantern.tree_shapes import JointTree

Path = tuple[int, ...]


class PathRecorder:
    """Observer of a decoder with a static tree: for every step of every image, the ranks of the deepest accepted path
    in the part of the tree that Jacobi drafts fill, and in the draft model's. Drafts behind the end of the image are
    none.
    """

    def __init__(self, decoder: Decoder) -> None:
        shape, self.num_tokens = decoder.spec.tree_shape, decoder.num_tokens
        # Jacobi's nodes come first.
        self.num_jacobi = len(shape.jacobi) if isinstance(shape, JointTree) else 0
        if decoder.spec.drafts == "jacobi":
            self.num_jacobi = len(shape)
        self.paths: list[tuple[Path, Path]] = []
        self._names: list[Path] = []

    def __call__(self, outcome: Outcome) -> None:
        """Receives one step."""
        tree = outcome.proposal.tree
        self._names = self._names or self._name_nodes(tree)
        # The target's own token behind the path counts, too: it takes the last place of the image.
        is_used = reached_nodes(tree, outcome.is_accepted) & (outcome.positions < self.num_tokens)
        for row in is_used[is_used[:, 0]].tolist():
            accepted = [node for node, is_reached in enumerate(row) if is_reached and node]
            parts = (
                [self._names[node] for node in accepted if (node <= self.num_jacobi) == is_jacobi]
                for is_jacobi in (True, False)
            )
            self.paths.append(tuple(max(part, key=len, default=()) for part in parts))

    def _name_nodes(self, tree: DraftTree) -> list[Path]:
        """Ranks on the way to each node, those of the draft model counted without Jacobi's beside them."""
        parents = tree.parents[0].tolist()
        names: list[Path] = [()]
        for node in range(1, len(parents)):
            siblings = range(1 + self.num_jacobi * (node > self.num_jacobi), node)
            rank = sum(parents[sibling] == parents[node] for sibling in siblings)
            names.append((*names[parents[node]], rank))
        return names


def record_paths(
    decoder: Decoder, prompts: Sequence[Prompt], encoder: TextEncoder, *, run_seed: int, batch_size: int
) -> list[tuple[Path, Path]]:
    """Draws images and returns, for every step, the accepted path of either part (see `PathRecorder`)."""
    recorder = decoder.observer = PathRecorder(decoder)
    try:
        for begin in range(0, len(prompts), batch_size):
            decode_timed(decoder, prompts[begin : begin + batch_size], encoder, run_seed)
    finally:
        decoder.observer = None
    return recorder.paths
