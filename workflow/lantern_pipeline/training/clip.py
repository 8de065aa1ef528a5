"""Training of the small CLIP model with open_clip's contrastive loss."""

from __future__ import annotations

import logging
import math
from collections import Counter
from pathlib import Path
from typing import TypedDict

import torch
from typing_extensions import override

from lantern_models.text.words import split_words
from lantern_pipeline.data.image_sources import ImageSource, batch_indices
from lantern_pipeline.training.loop import Trainer, cosine_rate, run_training
from lantern_pipeline.training.optimisers import Optimiser
from lantern_pipeline.world.clip import ClipConfig, ClipModel, ClipScorer, cut_texts

log = logging.getLogger(__name__)

MAX_LOGIT_SCALE = 100.0  # inverse of the lowest temperature of the softmax over pairs
MAX_OPEN_VOCABULARY = 8000
NUM_CANDIDATES = 32  # images or captions among which one is to be found, in the reported accuracy
WARMUP_SHARE = 0.1  # of all steps


class ClipRecipe(TypedDict):
    """Settings of CLIP's training without a key in config section `clip`. RECIPE explains them."""

    batch_size: int
    learning_rate: float
    weight_decay: float
    width: int
    embed_dim: int
    num_eval: int


class ClipSettings(ClipRecipe):
    """`ClipRecipe` and key num_steps of config section `clip`."""

    num_steps: int


RECIPE: ClipRecipe = {
    "batch_size": 128,  # image-caption pairs per step
    "learning_rate": 0.002,  # highest learning rate of AdamW
    "weight_decay": 0.05,
    "width": 16,  # channels of the first stage of the image tower; later stages scale with it
    "embed_dim": 64,  # length of the common embedding
    "num_eval": 512,  # number of held-out pairs for the reported accuracy
}


class ClipTrainer(Trainer[ClipModel]):
    """Trainer of a CLIP model. The seed determines the images of each step."""

    def __init__(self, model: ClipModel, source: ImageSource, settings: ClipSettings, seed: int) -> None:
        from open_clip.loss import ClipLoss

        self.model, self.source, self.settings, self.seed = model.train(), source, settings, seed
        self.loss = ClipLoss()
        # Gains and biases do not decay, as in CLIP's paper.
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        others = [p for p in model.parameters() if p.ndim < 2]
        adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
            lr=settings["learning_rate"],
            betas=(0.9, 0.98),
        )
        # In the order of the model: the rounding of the gradient's norm depends on the order.
        self.optimiser = Optimiser([adamw], 1.0, model.parameters())

    @override
    def step(self, i: int) -> dict[str, float]:
        indices, captions = self._draw_batch(i)
        device = next(self.model.parameters()).device
        images = self.source.images("train", indices).to(device)
        output = self.model(images, self.model.tokenizer(captions).to(device))
        loss = self.loss(output["image_features"], output["text_features"], output["logit_scale"])
        num_steps = self.settings["num_steps"]
        self.optimiser.step(loss, cosine_rate(i, num_steps, warmup=max(1, round(WARMUP_SHARE * num_steps))))
        with torch.no_grad():  # bound of the learned temperature, as in CLIP's paper
            self.model.clip.logit_scale.clamp_(0.0, math.log(MAX_LOGIT_SCALE))
        return {"loss": loss.item()}

    def _draw_batch(self, i: int) -> tuple[list[int], list[str]]:
        """Return the indices of the training images of step i, and their captions. No caption occurs twice."""
        indices = batch_indices(self.seed, i, self.settings["batch_size"], self.source.num_train)
        # The contrastive loss would treat an image and the equal caption of another image as a wrong pair.
        first = {}
        for index, caption in zip(indices, self.source.captions("train", indices), strict=True):
            first.setdefault(caption, index)
        return list(first.values()), list(first)


def train_clip(
    source: ImageSource,
    settings: ClipSettings,
    *,
    seed: int,
    checkpoint: Path | None = None,
    device: torch.device | str = "cpu",
) -> tuple[ClipModel, dict[str, object]]:
    """Train a small CLIP model, and return it in evaluation mode, with a report of JSON values.

    The report has the loss over time, and the retrieval accuracy on held-out images. The seed also determines the
    initial weights. `checkpoint` is a file for resuming an interrupted training.
    """
    # open_clip uses the global random generator for the initial weights. The fork restores its state afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ClipModel(make_config(source, settings)).to(device)
    captions = source.captions("train", range(source.num_train)) if model.config.is_open_vocabulary else []
    if cut := cut_texts(model.tokenizer, captions):
        room = model.tokenizer.context_length - 2  # without start and end token
        log.warning("CLIP is trained on the first %d words of %d of %d captions", room, len(cut), len(captions))
    trainer = ClipTrainer(model, source, settings, seed)
    history = run_training(trainer, settings["num_steps"], name="clip", checkpoint=checkpoint)
    report = {"num_steps": settings["num_steps"], "final_loss": history[-1]["loss"]}
    for split in [split for split in ("val", "unseen") if split in source.splits]:
        accuracy = retrieval_accuracy(ClipScorer.from_model(model), source, split, settings["num_eval"])
        report |= {f"{split}_{name}": value for name, value in accuracy.items()}
    counts = {"num_candidates": NUM_CANDIDATES, "num_eval": settings["num_eval"]}
    return model.eval(), {**report, **counts, "history": history}


def make_config(source: ImageSource, settings: ClipSettings) -> ClipConfig:
    """Build the config of the CLIP model. If the source has a fixed vocabulary, the model has the same.

    Otherwise the model knows the MAX_OPEN_VOCABULARY most frequent words of the training captions.
    """
    width, embed_dim = settings["width"], settings["embed_dim"]
    if source.vocabulary is not None:
        return ClipConfig(vocabulary=tuple(source.vocabulary), width=width, embed_dim=embed_dim)
    counts = Counter(word for text in source.captions("train", range(source.num_train)) for word in split_words(text))
    # Ties are in alphabetical order, because the rank of a word determines its token id.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return ClipConfig(
        vocabulary=tuple(ranked[:MAX_OPEN_VOCABULARY]), width=width, embed_dim=embed_dim, is_open_vocabulary=True
    )


def retrieval_accuracy(scorer: ClipScorer, source: ImageSource, split: str, num_pairs: int) -> dict[str, float]:
    """Measure how often CLIP finds the image of a caption, and the caption of an image, in a group.

    Groups are NUM_CANDIDATES of the first `num_pairs` images of the split. An incomplete last group is left out, unless
    it is the only one. If two images of a group have the same caption, either of them counts as correct.

    Returns:
        Name -> value:

        - image_to_text_accuracy: share of images for which the caption with the highest score is correct. With random
          choices it is 1 / NUM_CANDIDATES.
        - text_to_image_accuracy: share of captions for which the image with the highest score is correct.
        - mean_clip_score: mean cosine of images with their captions.
    """
    captions = source.captions(split, range(num_pairs))
    # 64 images at a time, to limit the memory of their activations.
    batches = (range(first, min(first + 64, num_pairs)) for first in range(0, num_pairs, 64))
    images = torch.cat([scorer.embed_images(source.images(split, chunk)) for chunk in batches])
    texts = scorer.embed_texts(captions)
    size = min(NUM_CANDIDATES, num_pairs)
    right = torch.zeros(2)
    num_groups = num_pairs // size
    for group in range(num_groups):
        rows = slice(group * size, (group + 1) * size)
        names = captions[rows]
        similarity = images[rows] @ texts[rows].T  # (images, texts)
        # The best text of each image, then the best image of each text.
        for direction, best in enumerate((similarity.argmax(dim=1), similarity.argmax(dim=0))):
            right[direction] += sum(names[i] == names[j] for i, j in enumerate(best.tolist()))
    shares = (right / (num_groups * size)).tolist()
    return {
        "image_to_text_accuracy": shares[0],
        "text_to_image_accuracy": shares[1],
        "mean_clip_score": float((images * texts).sum(dim=1).mean()),
    }
