"""Lantern: lossless and relaxed speculative decoding for visual autoregressive models.

docs/glossary.md defines the terms that docstrings use.
"""

from importlib import import_module as _import_module

__version__ = "1.0.0"
__all__ = ["Images", "Model", "audit", "custom_generate", "from_transformers", "load"]  # pyright: ignore[reportUnsupportedDunderAll]  see __getattr__


def __getattr__(name: str):
    """Import a public name of the package, such as `lantern.load`, when it is first used."""
    # Imported late, since Snakemake imports this package to plan the workflow, and must not load torch for that.
    # Named by strings, since the workflow runs a job again if a module that its import statements reach has
    # changed: with import statements here, every job would depend on every module.
    homes = {
        "audit": "lantern_audit.audit",
        "custom_generate": "lantern_models.custom_generate",
        "from_transformers": "lantern_models.from_transformers",
        "load": "lantern_models.loading",
    }
    if name in __all__:  # `Images` and `Model` are in lantern.api
        return getattr(_import_module(homes.get(name, "lantern.api")), name)
    raise AttributeError(f"module 'lantern' has no attribute {name!r}")
