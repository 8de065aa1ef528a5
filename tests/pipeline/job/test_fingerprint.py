"""Tests that an edit re-runs the scripts that use it, and nothing else."""

import pytest

from helpers.paths import ROOT
from lantern.methods import MethodSpec, make_method
from lantern.registry import ACCEPTANCE, DRAFTS, PRESETS, RESIDUALS, acceptance_of, drafts_of
from lantern_pipeline.job import fingerprint
from lantern_pipeline.job.fingerprint import (
    PACKAGES,
    class_file,
    code_fingerprint,
    imported_modules,
    method_files,
    packages_in,
)

SCRIPTS = ROOT / "workflow" / "scripts"


@pytest.fixture
def package(tmp_path):
    """Write a package of four modules, run -> (acceptance -> tree) and train -> loop, and two scripts."""
    root = tmp_path / "pack"
    (root / "deep").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "deep" / "__init__.py").write_text("")
    (root / "tree.py").write_text("SIZE = 3\n")
    (root / "acceptance.py").write_text("from .tree import SIZE\n\n\ndef accept():\n    return SIZE\n")
    (root / "deep" / "loop.py").write_text(
        '"""Loop."""\n\n\ndef loop():\n    from pack import helper\n    return helper\n'
    )
    (root / "helper.py").write_text("X = 1\n")
    (tmp_path / "run.py").write_text("import os\nimport pack.acceptance\n")
    (tmp_path / "train.py").write_text("from pack.deep import loop\n")
    return tmp_path


def prints(folder):
    for function in (fingerprint._parse, fingerprint._code_of, code_fingerprint):
        function.cache_clear()
    return {name: code_fingerprint(folder / f"{name}.py", (folder / "pack",)) for name in ("run", "train")}


def test_imports_are_followed_through_functions_relative_names_and_packages(package):
    names = {
        name: {
            p.relative_to(package / "pack").as_posix()
            for p in imported_modules(package / f"{name}.py", [package / "pack"])
        }
        for name in ("run", "train")
    }
    assert names["run"] == {"__init__.py", "acceptance.py", "tree.py"}
    assert names["train"] == {"__init__.py", "deep/__init__.py", "deep/loop.py", "helper.py"}


@pytest.mark.parametrize(
    "edited, changed",
    [
        ("pack/tree.py", {"run"}),
        ("pack/helper.py", {"train"}),
        ("run.py", {"run"}),
        ("pack/__init__.py", {"run", "train"}),
    ],
)
def test_an_edit_changes_only_what_uses_it(package, edited, changed):
    before = prints(package)
    path = package / edited
    path.write_text(path.read_text() + "\nNEW = 2\n")
    after = prints(package)
    assert {name for name in before if before[name] != after[name]} == changed


def test_comments_docstrings_and_layout_do_not_count(package):
    before = prints(package)
    (package / "pack" / "acceptance.py").write_text(
        '"""A docstring."""\n\nfrom .tree import (  # comment\n    SIZE,\n)\n\n\n'
        'def accept():\n    """Why."""\n    return SIZE\n'
    )
    assert prints(package) == before


def test_a_syntax_error_names_the_file(package):
    (package / "pack" / "tree.py").write_text("SIZE = (\n")
    with pytest.raises(ValueError, match=r"tree\.py, line 1"):
        prints(package)


def test_in_the_real_workflow_acceptance_reaches_generation_and_not_training():
    used = {p.stem: {m.name for m in imported_modules(p)} for p in SCRIPTS.glob("*.py")}
    assert {"decoding.py", "methods.py"} <= used["generate_images"]
    for script in (
        "train_tokenizer",
        "train_attribute_classifier",
        "train_clip",
        "train_target",
        "train_drafter",
        "encode_images",
    ):
        assert "relaxed_sets.py" not in used[script], script
        assert not {"decoding.py", "methods.py", "validate.py"} & used[script], script
        assert "sampling.py" not in used[script] or script == "train_drafter"  # which is validated on filtered drafts


def names(files):
    """Return the paths of files relative to the project."""
    return {file.relative_to(ROOT).as_posix() for file in files}


def test_a_job_uses_the_files_of_its_own_method():
    own = names(method_files([make_method("lantern", k=4, delta=0.1)]))
    assert own == {"lantern/decoding.py", "lantern/drafters/eagle.py", "lantern/acceptance/relaxed_sets.py"}
    assert "lantern_methods/zipar.py" in names(method_files([make_method("sjd"), make_method("zipar")]))
    heads = MethodSpec.of("a", tree="chain3", drafts="hybrid_head")  # a trained network makes its drafts
    assert "lantern_methods/jacobi_tree.py" not in names(method_files([make_method("jacobi")]))
    assert "lantern_methods/jacobi_tree.py" in names(method_files([make_method("jacobi_50")]))
    official = make_method("lantern", k=4, delta=0.1, residual="official")
    assert "lantern_methods/lantern_authors.py" in names(method_files([official]))
    assert {"lantern_methods/state_head.py"} <= names(method_files([heads]))


def test_every_class_of_the_tables_has_a_file():
    rows = [path for row in DRAFTS.values() for path in (row.path, row.branched, row.loop, *row.trained.values())]
    rows += [row.path for row in (*ACCEPTANCE.values(), *RESIDUALS.values())]
    assert [path for path in rows if path.startswith("lantern") and class_file(path) is None] == []
    assert class_file("lantern_of_others.module:Class") is None


def test_no_script_depends_on_a_peer():
    """Not by itself: by rules in workflow/rules/, a job also depends on the files of its own method."""
    files = {True: set(), False: set()}  # of peers, of the other presets
    for row in PRESETS.values():
        drafts, acceptance = drafts_of(row.parts.get("drafts")), acceptance_of(row.parts.get("acceptance", "exact"))
        files[row.is_peer] |= {class_file(path) for path in (drafts.path, drafts.loop, acceptance.path)}
    peers = names(files[True] - files[False])
    assert {"lantern_methods/pjd.py", "lantern_methods/sjd.py", "lantern_methods/gsd.py"} <= peers and len(peers) > 6
    used = {script.stem: names(imported_modules(script)) & peers for script in SCRIPTS.glob("*.py")}
    assert len(used) > 30 and not any(used.values()), used


def test_a_script_that_trains_a_network_depends_on_its_class():
    for script, drafts in (("train_drafter", None), ("train_heads", "heads"), ("train_state_head", "hybrid_head")):
        classes = drafts_of(drafts).trained.values() or ["lantern.models.draft:DraftModel"]
        assert {class_file(path) for path in classes} <= imported_modules(SCRIPTS / f"{script}.py")


def test_the_state_head_is_trained_with_the_code_of_the_method_that_records_its_steps():
    from lantern_pipeline.training.state_head import RECORDED

    assert set(method_files([RECORDED])) <= imported_modules(SCRIPTS / "train_state_head.py")


def test_an_edit_of_lantern_counts_for_a_class_of_a_user_that_derives_from_it(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "capped.py").write_text(
        "from lantern.acceptance.relaxed_sets import AdditiveBound\n\nfrom . import other\n\n\n"
        "class Capped(AdditiveBound):\n    pass\n"
    )
    (tmp_path / "mine" / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    files = method_files([MethodSpec.of("a", tree="chain3", drafts="top", acceptance="mine.capped:Capped")])
    assert tmp_path / "mine" / "capped.py" in files
    used = set().union(*map(imported_modules, files))
    assert ROOT / "lantern" / "acceptance" / "relaxed_sets.py" in used


def test_packages_beside_lantern_count_in_a_clone_and_if_installed(tmp_path):
    assert names(PACKAGES) >= {"lantern", "workflow/lantern_pipeline"}
    for folder, packages in (("clone", ("lantern", "lantern_made_up")), ("clone/workflow", ("lantern_pipeline",))):
        for package in packages:
            (tmp_path / folder / package).mkdir(parents=True)
            (tmp_path / folder / package / "__init__.py").write_text("")
    (tmp_path / "clone" / "lantern_results").mkdir()  # no package
    clone = tmp_path / "clone"
    packages = packages_in(clone, clone / "workflow")
    assert [package.name for package in packages] == ["lantern", "lantern_made_up", "lantern_pipeline"]
    assert packages_in(clone, clone) == packages[:2]  # in one folder, as if installed
    (clone / "lantern_made_up" / "peer.py").write_text("from lantern import core\n")
    (clone / "lantern" / "core.py").write_text("")
    file = class_file("lantern_made_up.peer:Drafter", packages)
    assert file == clone / "lantern_made_up" / "peer.py"
    assert clone / "lantern" / "core.py" in imported_modules(file, packages)


def test_an_edit_of_what_carries_a_job_re_runs_nothing_and_one_of_the_shards_does():
    used = {p.stem: {m.relative_to(ROOT).as_posix() for m in imported_modules(p)} for p in SCRIPTS.glob("*.py")}
    frame = {name for names in used.values() for name in names if "/job/" in name or name == "lantern/io.py"}
    assert not frame
    sharded = {name for name, names in used.items() if "workflow/lantern_pipeline/data/shards.py" in names}
    assert sharded == {"encode_images", "encode_prompts", "generate_images", "sample_codes"}


def test_a_module_that_only_carries_a_job_is_no_part_of_a_fingerprint(package, monkeypatch):
    monkeypatch.setattr(fingerprint, "LEFT_OUT", ("/pack/deep/",))
    before = prints(package)
    for path in (package / "pack" / "deep" / "loop.py", package / "pack" / "helper.py"):
        path.write_text(path.read_text() + "\nNEW = 2\n")
    assert prints(package) == before


def test_a_template_counts_by_its_bytes(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<html>")
    before = code_fingerprint(page)
    page.write_text("<html lang=en>")
    code_fingerprint.cache_clear()
    assert code_fingerprint(page) != before


def test_relative_imports_reach_the_folders_above(package):
    (package / "pack" / "deep" / "loop.py").write_text("from ..tree import SIZE\nfrom . import other\n")
    (package / "pack" / "deep" / "other.py").write_text("from .. import helper\n")
    fingerprint._parse.cache_clear()
    found = {file.name for file in imported_modules(package / "train.py", [package / "pack"])}
    assert found == {"__init__.py", "loop.py", "tree.py", "other.py", "helper.py"}


def test_a_fingerprint_has_sixteen_digits_and_no_order_of_modules(package, monkeypatch):
    modules = sorted(imported_modules(package / "train.py", [package / "pack"]))
    found = set()
    for order in (modules, modules[::-1]):
        monkeypatch.setattr(fingerprint, "imported_modules", lambda script, packages, order=order: order)
        found |= set(prints(package).values())
    assert len(found) == 2 and {len(digits) for digits in found} == {16}  # of two scripts
    (package / "page.html").write_text("<html>")
    assert len(code_fingerprint(package / "page.html")) == 16


def test_the_first_statement_after_a_docstring_counts_and_how_a_text_is_written_does_not(package):
    path, code = package / "pack" / "helper.py", '"""Help."""\n\nX = "1"\n'
    path.write_text(code)
    before = prints(package)
    path.write_text(code.replace('"1"', "u'1'"))
    assert prints(package) == before
    path.write_text(code.replace('"1"', '"2"'))
    assert prints(package) != before
