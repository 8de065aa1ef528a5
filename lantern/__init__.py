"""Lantern: lossless and relaxed speculative decoding for visual autoregressive models."""

from importlib import import_module as _import_module

__version__ = "0.5.0"
__all__ = ["Images", "Model", "audit", "custom_generate", "from_transformers", "load"]  # pyright: ignore[reportUnsupportedDunderAll]  see __getattr__


def __getattr__(name: str):
    """Import a public name of the package when it is first used.

    Snakemake imports this package when it plans the workflow. This import must not load torch.

    A stage of the workflow runs again if a module that it imports has changed. The workflow finds these modules from
    import statements. This function names modules by strings, so that a stage does not depend on them just because it
    imports the package.
    """
    homes = {
        "audit": "lantern.auditing.audit",
        "custom_generate": "lantern.within_generate",
        "from_transformers": "lantern.loading",
        "load": "lantern.loading",
    }
    if name in __all__:
        return getattr(_import_module(homes.get(name, "lantern.api")), name)
    raise AttributeError(f"module 'lantern' has no attribute {name!r}")
