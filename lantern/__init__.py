"""Lantern: lossless and relaxed speculative decoding for visual autoregressive models."""

from importlib import import_module as _import_module

__version__ = "0.5.0"
__all__ = ["Images", "Model", "custom_generate", "from_transformers", "load"]


def __getattr__(name: str):
    """Loads the public face when it is asked for: planning a workflow imports this package without torch.

    By name, since an import would be part of the code of everything that imports the package.
    """
    if name in __all__:
        home = "lantern.within_generate" if name == "custom_generate" else "lantern.api"
        return getattr(_import_module(home), name)
    raise AttributeError(f"module 'lantern' has no attribute {name!r}")
