"""Base class of models that Lantern writes to its checkpoint files and reads from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import nn

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class StoredModel(nn.Module):
    """Base class of models that `lantern.checkpoints.native` writes to a file, with their sizes, and reads from it.

    Attributes:
        kind: name by which a checkpoint states the class of the model.
        config_class: dataclass of the model's sizes.
        wide: prefixes of the names of weights that stay float32 when the model is cast to another dtype.
        config: sizes of this model.
    """

    kind: ClassVar[str]
    config_class: ClassVar[type]
    wide: ClassVar[tuple[str, ...]] = ()
    config: DataclassInstance
