"""Text encoders for targets that generate images of a class: a prompt becomes the number of its class."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from lantern_models.text.words import split_words

IMAGENET_CLASSES = Path(__file__).with_name("imagenet_classes.txt")  # torchvision's names (BSD-3-Clause), in order


class ClassEncoder:
    """The encoder of class numbers, such as "207", from 0 to num_classes - 1.

    If there are 1000 classes, a prompt may also be a class name of ImageNet. Case only matters for "Cardigan", a dog,
    and "cardigan", a garment.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        names = IMAGENET_CLASSES.read_text(encoding="utf-8").splitlines() if num_classes == 1000 else []
        self.numbers = {name: number for number, name in enumerate(names)}
        self.numbers |= {str(number): number for number in range(num_classes)}
        self.names: dict[str, list[str]] = {}  # a name in lower case -> names that are spelt so
        for name in self.numbers:
            self.names.setdefault(name.lower(), []).append(name)

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the class number of each text, int64 (texts, 1), and a mask that is always True."""
        ids = torch.tensor([[self.check(text)] for text in texts])
        return ids, torch.ones_like(ids, dtype=torch.bool)

    def check(self, text: str) -> int:
        """Return the class number of a text.

        Raises:
            ValueError: the text is not a class, or may be the name of several.
        """
        text = text.strip()
        # An exact spelling wins over one in another case.
        found = [text] if text in self.numbers else self.names.get(text.lower(), [])
        if len(found) > 1:
            known = " and ".join(f"{name} ({self.numbers[name]})" for name in found)
            raise ValueError(f"prompt {text!r:.80} may be the classes {known}; use one of these spellings or numbers")
        if not found:
            raise ValueError(
                f"prompt {text!r:.80} is no class; give a number from 0 to {self.num_classes - 1}, or with 1000 "
                f"classes a name of {IMAGENET_CLASSES.name}"
            )
        return self.numbers[found[0]]


class WordClassEncoder(ClassEncoder):
    """The encoder of captions whose words determine the class.

    A caption must contain a word of each list of `class_words`, for example one of the colours and one of the shapes.
    If it contains several words of a list, the first of them in the caption counts. The class is the combination of
    these words. Classes are numbered in the order of `itertools.product`.
    """

    def __init__(self, class_words: Sequence[Sequence[str]]) -> None:
        self.class_words = tuple(tuple(words) for words in class_words)
        combinations = list(product(*self.class_words))
        super().__init__(len(combinations))
        self.combinations = {words: number for number, words in enumerate(combinations)}

    @override
    def check(self, text: str) -> int:
        found = []
        for words in self.class_words:
            word = next((word for word in split_words(text) if word in words), None)
            if word is None:
                raise ValueError(f"prompt {text!r:.80} must hold one of the words {', '.join(words)}; add one")
            found.append(word)
        return self.combinations[tuple(found)]
