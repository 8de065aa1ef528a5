"""Base class of models that Lantern writes to its checkpoint files and reads from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from torch import nn

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class StoredModel(nn.Module):
    """A model whose sizes are its `config`, which `lantern.checkpoints.native` writes, too.

    `kind` states the class in the file. `wide` holds prefixes of names of weights that stay float32 in any dtype.
    A class may have a `label`, such as "a state head", and a `remedy` for messages about a missing model.
    """

    kind: ClassVar[str]
    config_class: ClassVar[type]
    wide: ClassVar[tuple[str, ...]] = ()
    label: ClassVar[str]
    remedy: ClassVar[str]
    config: DataclassInstance

    def prepare_for_decoding(self) -> Self:
        """Change the weights in place so that decoding is faster. By default nothing is done."""
        return self
