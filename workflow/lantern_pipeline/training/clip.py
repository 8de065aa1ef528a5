"""Training of the small CLIP model with open_clip's own contrastive loss."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lantern.models.text import split_words
from lantern_pipeline.data.image_sources import ImageSource, batch_indices
from lantern_pipeline.training.loop import cosine_rate, run_training, set_learning_rate
from lantern_pipeline.world.clip import ClipConfig, ClipModel, ClipScorer

MAX_LOGIT_SCALE = 100.0
MAX_OPEN_VOCABULARY = 8000
NUM_CANDIDATES = 32
WARMUP_SHARE = 0.1


class ClipTrainer:
    """Contrastive training on captioned images, one step at a time; see `lantern_pipeline.training.loop.Trainer`."""

    def __init__(self, model: ClipModel, source: ImageSource, settings: dict[str, Any], seed: int) -> None:
        """Prepares a trainer.

        Args:
            model: the model to train.
            source: of training images and captions.
            settings: config section `clip`: num_steps, batch_size, learning_rate, weight_decay.
            seed: of the order of images.
        """
        from open_clip.loss import ClipLoss

        self.model, self.source, self.settings, self.seed = model.train(), source, settings, seed
        self.loss = ClipLoss()
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        others = [p for p in model.parameters() if p.ndim < 2]
        self.optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
            lr=settings["learning_rate"],
            betas=(0.9, 0.98),
        )

    def step(self, i: int) -> dict[str, float]:
        """Runs step i on a batch that holds every caption once."""
        num_steps = self.settings["num_steps"]
        set_learning_rate(self.optimiser, cosine_rate(i, num_steps, warmup=max(1, round(WARMUP_SHARE * num_steps))))
        indices, captions = self._draw_batch(i)
        device = next(self.model.parameters()).device
        images = self.source.images("train", indices).to(device)
        output = self.model(images, self.model.tokenizer(captions).to(device))
        loss = self.loss(output["image_features"], output["text_features"], output["logit_scale"])
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        with torch.no_grad():  # the bound that CLIP's authors put on the learned temperature
            self.model.clip.logit_scale.clamp_(0.0, math.log(MAX_LOGIT_SCALE))
        return {"loss": loss.item()}

    def _draw_batch(self, i: int) -> tuple[list[int], list[str]]:
        """Indices and captions of step i. A caption drawn twice stays once: the loss would call it a mismatch."""
        indices = batch_indices(self.seed, i, self.settings["batch_size"], self.source.num_train)
        first = {}
        for index, caption in zip(indices, self.source.captions("train", indices), strict=True):
            first.setdefault(caption, index)
        return list(first.values()), list(first)

    def state_dict(self) -> dict[str, Any]:
        """Model and optimiser; the data depend on the step alone."""
        return {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])


def train_clip(
    source: ImageSource,
    settings: dict[str, Any],
    *,
    seed: int,
    checkpoint: Path | None = None,
    device: torch.device | str = "cpu",
) -> tuple[ClipModel, dict[str, Any]]:
    """Trains a small CLIP model and measures its retrieval accuracy on held-out real images.

    Args:
        source: of captioned images.
        settings: config section `clip`: num_steps, batch_size, learning_rate, weight_decay, width, embed_dim, num_eval.
        seed: of initial weights and data order.
        checkpoint: resumable training state.
        device: where to train.

    Returns:
        (model in evaluation mode, report as JSON values: num_steps, final_loss, retrieval accuracies, training
        history).
    """
    # A generator of its own is no option: open_clip initialises from the global one. The fork keeps the caller's state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ClipModel(make_config(source, settings)).to(device)
    trainer = ClipTrainer(model, source, settings, seed)
    history = run_training(trainer, settings["num_steps"], name="clip", checkpoint=checkpoint)
    report = {"num_steps": settings["num_steps"], "final_loss": history[-1]["loss"]}
    for split in [split for split in ("val", "unseen") if split in source.splits]:
        accuracy = retrieval_accuracy(ClipScorer.from_model(model), source, split, settings["num_eval"])
        report |= {f"{split}_{name}": value for name, value in accuracy.items()}
    return model.eval(), {
        **report,
        "num_candidates": NUM_CANDIDATES,
        "num_eval": settings["num_eval"],
        "history": history,
    }


def make_config(source: ImageSource, settings: dict[str, Any]) -> ClipConfig:
    """Builds the model's config: sizes from the settings, words from the source.

    A source without a closed vocabulary lends the most frequent words of its training captions; all others share one
    token.
    """
    sizes = {"width": settings["width"], "embed_dim": settings["embed_dim"]}
    if source.vocabulary is not None:
        return ClipConfig(vocabulary=tuple(source.vocabulary), **sizes)
    counts = Counter(word for text in source.captions("train", range(source.num_train)) for word in split_words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return ClipConfig(vocabulary=tuple(ranked[:MAX_OPEN_VOCABULARY]), is_open_vocabulary=True, **sizes)


def retrieval_accuracy(scorer: ClipScorer, source: ImageSource, split: str, num_pairs: int) -> dict[str, float]:
    """Measures 1-of-32 retrieval on real images of a split: how sharp is this ruler?

    Args:
        scorer: a trained scorer.
        source: of captioned images.
        split: which images; not "train".
        num_pairs: image-caption pairs; groups of 32 are made of them, a remainder is left out unless it is all there
            is.

    Returns:
        image_to_text_accuracy and text_to_image_accuracy, shares right (chance: 1 / 32 with full groups; a candidate
        with the same caption counts as right), and mean_clip_score, the mean cosine of matching pairs.
    """
    captions = source.captions(split, range(num_pairs))
    images = torch.cat([scorer.embed_images(source.images(split, chunk)) for chunk in _chunks(num_pairs, 64)])
    texts = scorer.embed_texts(captions)
    size = min(NUM_CANDIDATES, num_pairs)
    right = torch.zeros(2)
    num_groups = num_pairs // size
    for group in range(num_groups):
        rows = slice(group * size, (group + 1) * size)
        names = captions[rows]
        similarity = images[rows] @ texts[rows].T  # (images, texts)
        for direction, best in enumerate((similarity.argmax(dim=1), similarity.argmax(dim=0))):
            right[direction] += sum(names[i] == names[j] for i, j in enumerate(best.tolist()))
    shares = (right / (num_groups * size)).tolist()
    return {
        "image_to_text_accuracy": shares[0],
        "text_to_image_accuracy": shares[1],
        "mean_clip_score": float((images * texts).sum(dim=1).mean()),
    }


def _chunks(num: int, size: int) -> Sequence[range]:
    return [range(first, min(first + size, num)) for first in range(0, num, size)]
