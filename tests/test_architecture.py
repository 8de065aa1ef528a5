"""Tests of imports that the contracts of import-linter in pyproject.toml cannot express."""

import ast

from helpers.paths import ROOT

PACKAGES = [path for folder in (ROOT, ROOT / "workflow") for path in folder.glob("lantern*/**/__init__.py")]
ROWS = ROOT / "lantern_methods" / "__init__.py"  # declares methods, which is all that it does


def imports(path):
    """Return the import statements of a file, inside functions too."""
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def names(node):
    """Return the names of the modules that an import statement names."""
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


def test_init_files_import_nothing_of_ours():
    """An import there would be part of every fingerprint below the package."""
    found = {
        f"{path}: {ast.unparse(node)}"
        for path in PACKAGES
        for node in imports(path)
        if path != ROWS and any(name.startswith("lantern") for name in names(node))
    }
    assert len(PACKAGES) > 15 and not found
