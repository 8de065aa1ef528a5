"""Fingerprint of a script: a hash of its code and of the modules that it imports.

Snakemake notices a change of a script, but not of a package that the script imports. Each rule therefore has this hash
as a parameter. After an edit, Snakemake runs again only the rules whose scripts use the edited code. Comments,
docstrings and layout do not change the hash. To find the imports, files are parsed, never run.

A method names its classes by strings, "module:Class", which are no imports. The parameter of a job that decodes also
has the fingerprints of the files of its own methods' classes (`method_files`) and of their rows (`row_fingerprint`).

*Packages* are folders whose modules count: those beside `lantern` and `lantern_pipeline` that are named lantern*.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import lantern
from lantern.extensions import import_object
from lantern.methods import MethodSpec
from lantern.registry import ACCEPTANCE, DRAFTS, PRESETS, RESIDUALS


def packages_in(*folders: Path) -> tuple[Path, ...]:
    """Return the packages in some folders, in the order of their names."""
    return tuple(sorted({file.parent for folder in folders for file in folder.glob("lantern*/__init__.py")}))


# A clone has them in two folders, an installation in one.
PACKAGES = packages_in(Path(lantern.__file__).resolve().parents[1], Path(__file__).resolve().parents[2])

# Nearly every script imports these modules, so an edit of an error message in them would run everything again. They
# pass values on and never change them: the functions around a job (log, locks, device), the types of its parameters,
# and the reading and writing of files. Snakemake itself compares the values of parameters. Functions that read a file
# compare it with the checksum in it, and refuse an unknown format. The rows of lantern_methods count one by one.
LEFT_OUT = (
    "/lantern/io.py",
    "/lantern_methods/__init__.py",
    "/lantern_pipeline/job/",
    "/lantern_pipeline/schema/",
)

_HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache  # rules ask for it once per job
def code_fingerprint(script: Path | str, packages: tuple[Path, ...] = PACKAGES) -> str:
    """Return a hash of a script and of the modules that it imports, as 16 hexadecimal digits.

    It is the same on every machine and Python version. If the script is no Python file, only its bytes are hashed.
    """
    if Path(script).suffix != ".py":  # such as a template or a table
        return hashlib.sha256(Path(script).read_bytes()).hexdigest()[:16]
    digest = hashlib.sha256(_code_of(Path(script)).encode())
    # Relative names, since absolute paths differ between machines.
    names = {
        module.relative_to(package.parent).as_posix(): module
        for module in imported_modules(script, packages)
        for package in packages
        if module.is_relative_to(package)
    }
    for name, module in sorted(names.items()):
        digest.update(f"\n{name}\n{_code_of(module)}".encode())
    return digest.hexdigest()[:16]


def method_files(methods: Iterable[MethodSpec]) -> list[Path]:
    """Return the files that define the classes of methods, in the order of the classes' paths."""
    paths = sorted({path for spec in methods for path in spec.classes})
    # A user's class is imported to find its file. It may derive from a class of the packages.
    found = (class_file(path) or inspect.getsourcefile(import_object(path)) for path in paths)
    return list(dict.fromkeys(Path(file) for file in found if file))


def row_fingerprint(methods: Iterable[MethodSpec], with_labels: bool = False) -> str:
    """Return a hash of the rows that declare methods, as 16 hexadecimal digits."""
    tables = DRAFTS, ACCEPTANCE, RESIDUALS, PRESETS
    rows = []
    for spec in methods:
        names = str(spec.drafts), spec.acceptance, spec.residual, spec.name
        found = [table.get(name) for table, name in zip(tables, names, strict=True)]  # None for a user's class
        rows.append(found if with_labels else found[:-1])
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def labels_methods(script: Path | str) -> bool:
    """Return whether a script writes the labels of methods."""
    return any(module.name == "method_labels.py" for module in imported_modules(script))


def class_file(path: str, packages: Sequence[Path] = PACKAGES) -> Path | None:
    """Return the file of the packages that defines a class, "module:Class". None if it is another package's."""
    name = path.partition(":")[0].replace(".", "/")
    places = [package.parent / name for package in packages if package.name == name.partition("/")[0]]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return next(filter(Path.is_file, files), None)


def imported_modules(script: Path | str, packages: Sequence[Path] = PACKAGES) -> set[Path]:
    """Return the files of the modules that a script imports, directly or through other modules.

    Imports inside functions and the `__init__.py` of each package count. Modules in LEFT_OUT, and those that only these
    import, do not.
    """
    found: set[Path] = set()
    waiting = [Path(script)]
    while waiting:
        # a tuple, because the result is cached by the arguments
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
    names: set[str] = set()
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_base(node, path, packages)
            names.add(base)
            # The imported name may be a module or a class. `_files_of` finds no file of a class.
            names.update(f"{base}.{alias.name}" for alias in node.names)
    # Names of other libraries have no file in a package.
    return {file for name in names for package in packages for file in _files_of(name, package)}


def _absolute_base(node: ast.ImportFrom, path: Path, packages: tuple[Path, ...]) -> str:
    """Return the module name after `from` in an import statement, with leading dots resolved."""
    if node.level == 0:
        return node.module or ""
    folder = path.resolve().parents[node.level - 1]  # one dot stands for the folder of the file
    package = next((package for package in packages if folder.is_relative_to(package)), None)
    if package is None:
        return ""  # within a user's package
    parts = folder.relative_to(package.parent).parts
    return ".".join([*parts, *([node.module] if node.module else [])])


def _files_of(name: str, package_root: Path) -> Iterator[Path]:
    """Yield the files that an import runs: the `__init__.py` of each package in its name, then the module."""
    parts = name.split(".")
    if parts[0] != package_root.name:
        return
    place = package_root
    # None stands for the package itself.
    for part in [None, *parts[1:]]:
        place = place / part if part else place
        if (place / "__init__.py").is_file():
            yield place / "__init__.py"
        elif place.with_suffix(".py").is_file():
            yield place.with_suffix(".py")


def _flatten(node: object, pieces: list[str]) -> list[str]:
    """Append a syntax tree as text to `pieces`, without line numbers, docstrings and empty fields."""
    if isinstance(node, ast.AST):
        pieces.append(f"({type(node).__name__}")
        for field, value in ast.iter_fields(node):
            if (
                field == "body"
                and isinstance(node, _HAVE_DOCSTRINGS)
                and ast.get_docstring(node, clean=False) is not None
            ):
                value = value[1:]
            # Newer Pythons add empty fields. `ctx` follows from the place of a node, `kind` is the u of u"text".
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
