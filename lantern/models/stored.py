"""Base class of models that can be stored in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import nn

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class StoredModel(nn.Module):
    """Base class of models that `lantern.checkpoints.native` writes and reads.

    Attributes:
        kind: name of the class in checkpoints.
        config_class: dataclass of the sizes.
        wide: prefixes of the names of weights that stay float32 when the model is cast to another dtype.
        config: sizes of this model.
    """

    kind: ClassVar[str]
    config_class: ClassVar[type]
    wide: ClassVar[tuple[str, ...]] = ()
    config: DataclassInstance
