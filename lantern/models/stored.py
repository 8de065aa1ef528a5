"""Base class of models that Lantern writes to its checkpoint files and reads from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import nn

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class StoredModel(nn.Module):
    """A model whose sizes are its `config`, which `lantern.checkpoints.native` writes, too.

    `kind` states the class in the file. `wide` holds prefixes of names of weights that stay float32 in any dtype.
    """

    kind: ClassVar[str]
    config_class: ClassVar[type]
    wide: ClassVar[tuple[str, ...]] = ()
    config: DataclassInstance
