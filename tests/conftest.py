"""Shared fixtures: tiny random models on which every method runs in milliseconds."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from lantern.codebook import nearest_codes
from lantern.decoding import make_decoder
from lantern.decoding_state import DecodingModels, Generation
from lantern.methods import MethodSpec
from lantern.models.draft import DraftConfig, DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern.sampling import SamplingConfig

if TYPE_CHECKING:
    from lantern_pipeline.settings.run_config import RunConfig

torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """With LANTERN_NO_SKIPS, as in `.ci/run` where all parts are installed, only tests that need a GPU may skip."""
    report = yield
    if report.skipped and os.environ.get("LANTERN_NO_SKIPS") and not item.get_closest_marker("gpu"):
        report.outcome, report.longrepr = "failed", f"may not skip here: {report.longrepr[2]}"
    return report


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished tiny run of the real Snakefile, for tests/workflow and tests/cluster.

    `make test` names a folder for it. Tests read it; who changes something takes a copy.
    """
    from tiny_run import finished_run

    return finished_run(Path(os.environ.get("LANTERN_TINY_RUN") or tmp_path_factory.mktemp("tiny")))


def load_config(paths) -> dict:
    """Merge config files as the workflow does, and check the result: defaults, the model's card, then overlays."""
    # Imported here, so that GPU tests of `tests/core` run where Snakemake and JSON Schema are not installed.
    from snakemake.utils import update_config

    from lantern_pipeline.config.validate import load_yaml, validate_config
    from lantern_pipeline.data.model_cards import card_sections, hub_entries

    given, defaults = {}, ROOT / "config.yaml"
    for path in paths:
        if Path(path) != defaults:
            update_config(given, load_yaml(path))
    config = load_yaml(defaults)
    update_config(config, load_yaml(ROOT / "workflow" / "resources.yaml"))
    update_config(config, {**card_sections(given.get("model")), "resources": hub_entries()})
    update_config(config, given)
    validate_config(config)
    return config


def typed_config(config: dict) -> RunConfig:
    """Return a config as rules get it, without the rules between its keys."""
    from lantern_pipeline.config.validate import check_keys

    return check_keys(copy.deepcopy(config))


def load_config_of_all_figures() -> dict:
    """The default config with the ablations of all overlays that have some: no figure is off."""
    config = load_config([ROOT / "config.yaml"])
    for overlay in ("ablations", "embedded_training"):
        more = load_config([ROOT / "config.yaml", ROOT / "experiments" / f"{overlay}.yaml"])
        config["ablations"]["grids"] |= more["ablations"]["grids"]
    return config


def make_models(
    vocab_size: int = 12,
    grid: int = 4,
    seed: int = 0,
    scale: float = 6.0,
    line_end: int | None = None,
    is_prepared: bool = True,
) -> DecodingModels:
    """A random target, a random draft model and a random codebook's nearest codes.

    The heads are scaled up so that distributions are far from uniform, and the vocabulary is small, so that drafts of
    a random draft model are accepted now and then. With a `line_end`, the last token ends lines of codes.
    """
    torch.manual_seed(seed)
    config = TargetConfig(
        dim=32,
        num_layers=2,
        num_heads=2,
        vocab_size=vocab_size,
        grid=grid,
        num_text_tokens=5,
        caption_dim=16,
        ffn_multiple=16,
        line_end=line_end,
    )
    target = TargetModel(config).eval()
    draft = DraftModel(DraftConfig.of(config)).eval()
    with torch.no_grad():
        for parameter in [*target.parameters(), *draft.parameters()]:
            if parameter.dim() == 2:
                parameter.mul_(scale)
        draft.token_embedding.weight.copy_(target.token_embedding.weight)
        draft.from_hidden.weight.copy_(torch.eye(config.dim))
    table = nearest_codes(torch.randn(config.num_codes, 4), k=config.num_codes - 1)
    if is_prepared:
        target.prepare_for_decoding()
        draft.prepare_for_decoding()
    return DecodingModels(target, draft, table)


@pytest.fixture(scope="session")
def models() -> DecodingModels:
    return make_models()


def make_prompts(models: DecodingModels, batch: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded random caption features and their mask, of various lengths."""
    config = models.target.config
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, config.num_text_tokens, config.caption_dim, generator=generator)
    lengths = torch.arange(batch) % config.num_text_tokens + 1
    mask = torch.arange(config.num_text_tokens) >= config.num_text_tokens - lengths[:, None]
    return features * mask[..., None], mask


def generate(
    models: DecodingModels, spec: MethodSpec, rows: Iterable[int] = range(5), observer=None, **sampling
) -> Generation:
    """Images "prompt-0" and so on, of five prompts in turn, guided by 2 unless told otherwise."""
    decoder = make_decoder(models, spec, SamplingConfig(**{"cfg_scale": 2.0, **sampling}))
    decoder.observer = observer
    features, mask = make_prompts(models, 5)
    prompts = [row % 5 for row in rows]
    noise = [decoder.make_noise(7, f"prompt-{row}") for row in rows]
    return decoder.generate(features[prompts], mask[prompts], noise)


def assert_distribution(counts: torch.Tensor, probs: torch.Tensor) -> None:
    """Chi-square of how often codes were drawn, where fewer than five are expected together; fails once in 10^4 by
    chance.
    """
    from scipy.stats import chisquare

    assert not counts[probs == 0].any(), counts
    counts, expected = counts.double(), probs.double() / probs.double().sum() * counts.sum()
    is_rare = (expected < 5) & (probs > 0)
    kept = (expected >= 5) & (probs > 0)
    cells = [
        torch.cat([part[kept], part[is_rare].sum()[None]][: 1 + bool(is_rare.any())]) for part in (counts, expected)
    ]
    assert len(cells[0]) > 1 and chisquare(*cells).pvalue > 1e-4, cells


@pytest.fixture(scope="module")
def browser():
    """Chromium; what needs it is skipped where it or playwright is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: install the dev extra")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"needs one of {', '.join(names)} on the PATH")
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=arguments)
        except sync_api.Error as error:  # Ubuntu's package of that name only asks for a snap
            pytest.skip(f"{path} does not start: {str(error).splitlines()[0]}")
        yield browser
        browser.close()
