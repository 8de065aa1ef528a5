"""Fingerprint of a script: a hash of its code and of the modules that it imports.

Snakemake notices a change of a script, but not of a package that the script imports. Each rule therefore has this hash
as a parameter. After an edit, Snakemake runs again only the rules whose scripts use the edited code. Comments,
docstrings and layout do not change the hash. To find the imports, files are parsed, never run.

Some modules are left out of the hash (constant LEFT_OUT). They do not affect numbers, but nearly every script imports
them. If they counted, an edit of an error message would run everything again.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import lantern

# Folders of the packages whose code counts.
PACKAGES = (Path(lantern.__file__).resolve().parent, Path(__file__).resolve().parents[1])

# Modules that pass values on and never change them: the functions around a job (log, locks, device), the types of its
# parameters, and the reading and writing of files. Snakemake itself compares the values of parameters. Functions that
# read a file compare it with the checksum in it, and refuse an unknown format.
LEFT_OUT = ("/lantern/io.py", "/lantern_pipeline/runtime/", "/lantern_pipeline/settings/")

CLASS_PATH = re.compile(r"lantern[\w.]*:\w+")
_HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache  # rules ask for it once per job
def code_fingerprint(script: Path | str, packages: tuple[Path, ...] = PACKAGES) -> str:
    """Return a hash of a script and of the modules that it imports, so that rules notice an edit of the code.

    Modules in LEFT_OUT are not hashed, because they do not affect numbers. The hash is the same on every machine and
    Python version. If the script is not a Python file, only its bytes are hashed.

    Args:
        script: the script.
        packages: folders of the packages whose modules count. The name of a folder is the name of its package.

    Returns:
        16 hexadecimal digits.
    """
    if Path(script).suffix != ".py":  # such as a template or a table
        return hashlib.sha256(Path(script).read_bytes()).hexdigest()[:16]
    digest = hashlib.sha256(_code_of(Path(script)).encode())
    names = {
        module.relative_to(package.parent).as_posix(): module
        for module in imported_modules(script, packages)
        for package in packages
        if module.is_relative_to(package)
    }
    for name, module in sorted(names.items()):
        digest.update(f"\n{name}\n{_code_of(module)}".encode())
    return digest.hexdigest()[:16]


def imported_modules(script: Path | str, packages: Sequence[Path] = PACKAGES) -> set[Path]:
    """Return the files of the modules that a script imports, directly or through other modules.

    Imports inside functions count, and so does the `__init__.py` of each package. Modules in LEFT_OUT, and modules that
    only these import, do not count, because they do not affect numbers.

    Args:
        script: the script.
        packages: folders of the packages whose modules count. Modules of other packages are left out.
    """
    found: set[Path] = set()
    waiting = [Path(script)]
    while waiting:
        for module in _imports_of(waiting.pop(), tuple(packages)) - found:
            if not any(part in module.as_posix() for part in LEFT_OUT):
                found.add(module)
                waiting.append(module)
    return found


@cache
def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}; mend it before running the workflow") from error


@cache
def _code_of(path: Path) -> str:
    return "".join(_flatten(_parse(path), []))


@cache
def _imports_of(path: Path, packages: tuple[Path, ...]) -> set[Path]:
    """Return the files that the import statements of one file load.

    A string of the form "lantern.module:Class" also counts as an import, because the code loads classes by such names.

    Args:
        path: the file.
        packages: folders of the packages whose files count.
    """
    names: set[str] = set()
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_base(node, path, packages)
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and CLASS_PATH.fullmatch(node.value):
            names.add(node.value.split(":")[0])  # a class that is loaded by its path
    return {file for name in names for package in packages for file in _files_of(name, package)}


def _absolute_base(node: ast.ImportFrom, path: Path, packages: tuple[Path, ...]) -> str:
    """Return the module name after `from` in an import statement, with leading dots resolved.

    Args:
        node: the statement.
        path: the file with the statement.
        packages: folders of the packages, one of which contains the file.
    """
    if node.level == 0:
        return node.module or ""
    folder = path.resolve().parents[node.level - 1]
    package = next(package for package in packages if folder.is_relative_to(package))
    parts = folder.relative_to(package.parent).parts
    return ".".join([*parts, *([node.module] if node.module else [])])


def _files_of(name: str, package_root: Path) -> Iterator[Path]:
    """Yield the files that an import of a module runs: the `__init__.py` of each package in its name, then the module.

    Args:
        name: the module's name with dots.
        package_root: folder of the package to search. If the module is in another package, nothing is yielded.
    """
    parts = name.split(".")
    if parts[0] != package_root.name:
        return
    place = package_root
    for part in [None, *parts[1:]]:
        place = place / part if part else place
        if (place / "__init__.py").is_file():
            yield place / "__init__.py"
        elif place.with_suffix(".py").is_file():
            yield place.with_suffix(".py")


def _flatten(node: object, pieces: list[str]) -> list[str]:
    """Append a syntax tree as text, to be hashed, without line numbers, docstrings and empty fields.

    Empty fields are left out because newer Pythons add some, and the hash must not depend on the Python version.

    Args:
        node: the tree, a list of trees or the value of a field.
        pieces: list to which pieces of text are appended.

    Returns:
        `pieces`.
    """
    if isinstance(node, ast.AST):
        pieces.append(f"({type(node).__name__}")
        for field, value in ast.iter_fields(node):
            if (
                field == "body"
                and isinstance(node, _HAVE_DOCSTRINGS)
                and ast.get_docstring(node, clean=False) is not None
            ):
                value = value[1:]
            if value is None or value == [] or field in ("kind", "type_comment", "ctx"):
                continue
            pieces.append(f" {field}=")
            _flatten(value, pieces)
        pieces.append(")")
    elif isinstance(node, list):
        for item in node:
            _flatten(item, pieces)
            pieces.append(",")
    else:
        pieces.append(repr(node))
    return pieces
