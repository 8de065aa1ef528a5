"""What the contracts of import-linter in pyproject.toml, which `make lint` checks, cannot say of imports."""

import ast

from conftest import ROOT

FILES = [path for folder in ("lantern", "workflow/lantern_pipeline") for path in (ROOT / folder).rglob("*.py")]


def imports(path):
    """Return the import statements of a file, inside functions too."""
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def names(node):
    """Return the names of the modules that an import statement names."""
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


def test_imports_are_absolute():
    relative = {path for path in FILES for node in imports(path) if isinstance(node, ast.ImportFrom) and node.level > 0}
    assert len(FILES) > 90 and not relative


def test_init_files_import_nothing_of_ours():
    """An import there would tie every fingerprint below the package to it."""
    packages = [path for path in FILES if path.name == "__init__.py"]
    found = {
        f"{path}: {ast.unparse(node)}"
        for path in packages
        for node in imports(path)
        if any(name.partition(".")[0] in ("lantern", "lantern_pipeline") for name in names(node))
    }
    assert len(packages) > 10 and not found
