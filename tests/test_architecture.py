"""Imports point one way: from the pipeline to the core, and inside each from the later stages to the earlier ones."""

import ast

from conftest import ROOT

FILES = [path for folder in ("lantern", "workflow/lantern_pipeline") for path in (ROOT / folder).rglob("*.py")]
# Room of the pipeline -> rooms that it may import, besides itself and lantern.
BELOW = {
    "runtime": set(),
    "world": {"runtime"},
    "fetch": {"runtime"},
    "data": {"runtime", "world", "fetch"},
    "training": {"runtime", "world", "fetch", "data"},
    "measure": {"runtime", "world", "fetch", "data"},
    "tables": {"runtime", "world", "fetch", "data", "measure"},
    "figures": {"runtime", "world", "fetch", "data", "measure", "tables"},
    "pages": {"runtime", "world", "fetch", "data", "measure", "tables"},
    "archive": {"runtime", "world", "fetch", "data", "measure", "tables", "pages", "config"},
    # Read while Snakemake plans: what it imports must be free of torch, see below.
    "config": {"runtime", "fetch", "data", "measure", "world", "figures", "training"},
}
CORE_ORDER = [
    {
        "io",
        "methods",
        "tree_shapes",
        "noise",
        "sampling",
        "kv_cache",
        "attention_mask",
        "codebook",
        "prompts",
        "models.config",
    },
    {"checkpoints.files"},
    {"draft_tree", "models"},
    {"step", "checkpoints", "custom_parts"},
    {"acceptance"},
    {"drafters", "stepping"},
    {"decoding"},
    {"drafters.zipar", "records"},
    {"generation", "within_generate"},
    {"api"},
]


def imports(path):
    """Modules of ours that a file imports, inside functions too; not those that only type checkers read."""
    tree = ast.parse(path.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.partition(".")[0] in ("lantern", "lantern_pipeline", "snakemake")}


def core_level(name):
    """Place of a module of lantern in CORE_ORDER."""
    parts = name.split(".")[1:]
    for part in (".".join(parts[:2]), parts[0]):  # a module of models/ or checkpoints/ may have a place of its own
        for level, names in enumerate(CORE_ORDER):
            if part in names:
                return level
    raise AssertionError(f"{name} has no place in CORE_ORDER")


def test_imports_point_one_way():
    for path in FILES:
        found = imports(path)
        assert not {name for name in found if name.startswith("snakemake")}, f"{path}: Snakemake belongs to rules"
        if path.is_relative_to(ROOT / "lantern"):
            known = {"lantern_pipeline.pretrained"} if path.name == "api.py" else set()  # inside a function
            higher = {name for name in found if name.startswith("lantern_pipeline")} - known
            if path.name != "__init__.py":
                own = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
                ours = found - known - higher - {"lantern.__version__"}
                higher |= {name for name in ours if core_level(name) > core_level(own)}
            assert not higher, f"{path} imports what comes after it"
            continue
        room = path.relative_to(ROOT / "workflow" / "lantern_pipeline").parts[0]
        if room in BELOW:
            rooms = {name.split(".")[1] for name in found if name.startswith("lantern_pipeline.")}
            assert rooms <= BELOW[room] | {room}, f"{path}: {room} may import {sorted(BELOW[room])}"


def test_every_room_has_a_place():
    rooms = {
        path.name for path in (ROOT / "workflow" / "lantern_pipeline").iterdir() if (path / "__init__.py").exists()
    }
    assert rooms == set(BELOW)


def test_init_files_import_nothing():
    """An import there would tie every fingerprint below the package to it."""
    assert not {path: imports(path) for path in FILES if path.name == "__init__.py" and imports(path)}
