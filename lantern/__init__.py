"""Lantern: lossless and relaxed speculative decoding for visual autoregressive models.

docs/glossary.md defines the terms that docstrings use.
"""

from importlib import import_module as _import_module

__version__ = "0.5.0"
__all__ = ["Images", "Model", "audit", "custom_generate", "from_transformers", "load"]  # pyright: ignore[reportUnsupportedDunderAll]  see __getattr__


def __getattr__(name: str):
    """Import a public name of the package, such as `lantern.load`, when it is first used.

    The import is late for two reasons. Snakemake imports this package when it plans the workflow, and must not load
    torch for that. The workflow also runs a job again if a module that the job imports has changed. It finds these
    modules from import statements. Since this function names modules by strings, no job depends on all of them.
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
