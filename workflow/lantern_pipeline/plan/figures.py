"""Table of the figures of a run: title, files and settings of each.

Function `draw_<name>` of module `lantern_pipeline.figures.<name>` draws the figure <name>. Script draw_figure.py calls
it with the contents of the files and the settings as keyword arguments. The report shows it with the caption
`workflow/report/figures/<name>.rst`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lantern_pipeline.plan.paths import TOKENIZER, RunPlan
from lantern_pipeline.schema.run_config import RunConfig

SUMMARY = "<results>/summary.csv"
GENERALITY = "<results>/generality.csv"
PREMISE = "<results>/premise.csv"
PUBLISHED = "tables/published_results.csv"
MIN_SIZES = 3  # smallest number of draft trees of different size that make a curve


@dataclass(frozen=True)
class Figure:
    """Description of one figure.

    Attributes:
        letter: letter by which texts refer to the figure.
        files: argument of the drawing function -> path or paths of its data. Paths of records contain {scatteritem}, in
            whose place Snakemake writes the number of a shard.
        settings: further arguments of the drawing function.
        package_files: further data, relative to lantern_pipeline/. A change of it draws the figure again.
    """

    letter: str
    title: str
    files: Mapping[str, str | list[str]]
    settings: Mapping[str, object] = field(default_factory=dict)
    package_files: tuple[str, ...] = ()

    @property
    def draws_images(self) -> bool:
        """True if the figure decodes records to images, for which its job needs more memory."""
        return "records" in self.files


def figure_table(plan: RunPlan) -> dict[str, Figure]:
    """Return the figures of a run, by name. A figure is left out if the run does not produce its data."""
    config = plan.config
    # A figure gets only the config keys that it reads, since a change of one draws the figure again.
    of_rows = {"settings": config.metrics.model_dump(include={"headline_prompt_set", "headline_temperature"})}
    of_samples = {"settings": config.figures.model_dump(include={"sample_prompts", "sample_methods"})}
    of_proximity = {"settings": config.figures.model_dump(include={"proximity_prompts"}), "seed": config.seed}
    prompts = f"<results>/prompts/{plan.headline['prompt_set']}.jsonl"
    # Records are read in the order of the prompts, so each figure with records also has the prompts.
    records = {"records": plan.records_of(**plan.headline, repeat=plan.repeats[0]), "prompts": prompts}
    images = {**records, "tokenizer": TOKENIZER}
    # Figure `latent_proximity` replaces codes of these images itself, and therefore needs no other method.
    originals = plan.records_of(**plan.headline, repeat=plan.repeats[0], methods=["autoregressive"])
    nearest = "<results>/codebook/l2_normalised.safetensors"
    tables = "<results>/total_variation"
    ablations = plan.ablation_tables("csv")
    figures = {
        "samples": Figure("a", "Same prompts, same noise, every method", images, of_samples),
        "tradeoff": Figure("b", "Speed and quality", {"summary": SUMMARY}, of_rows),
        "ambiguity": Figure("c", "Token-selection ambiguity", {"ambiguity": "<results>/quality/ambiguity.csv"}),
        "latent_proximity": Figure(
            "e",
            "Do nearest codes look alike?",
            {**images, "records": originals, "nearest_codes": nearest},
            of_proximity,
        ),
        "total_variation": Figure(
            "h",
            "Is delta a bound?",
            {"curves": f"{tables}/curves.csv", "methods": f"{tables}/methods.csv", "summary": SUMMARY},
            of_rows,
        ),
        "published": Figure(
            "l",
            "Published numbers next to those of this run",
            {"summary": SUMMARY},
            of_rows,
            package_files=(PUBLISHED,),
        ),
        "ablations": Figure("n", "Ablations", {"table": ablations}),
        "premise": Figure("p", "May nearest codes replace each other?", {"premise": PREMISE}),
        "frontier": Figure("q", "Speed and distance from the target's distribution", {"summary": SUMMARY}, of_rows),
        "generality": Figure("r", "Tokens per forward pass on targets of different ambiguity", {"table": GENERALITY}),
        "nodes": Figure(
            "s",
            "Tokens per forward pass over the nodes of the draft tree",
            {"summary": SUMMARY},
            {**of_rows, "trees": config.trees},
        ),
        "grid_sizes": Figure(
            "t", "Tokens per forward pass on grids of different size", {"table": GENERALITY}, package_files=(PUBLISHED,)
        ),
    }
    is_off = {
        # whether the run lacks the data; figures that are not named here are always drawn
        "total_variation": not plan.needs_draft_model,
        "ablations": not ablations,
        "generality": not config.variants,
        "premise": not config.premise.ks,
        "nodes": not _has_node_curves(plan),
        "grid_sizes": not _varies_grid(config),
    }
    return {name: figure for name, figure in figures.items() if not is_off.get(name)}


def _has_node_curves(plan: RunPlan) -> bool:
    """Return whether enough exact methods with Jacobi drafts have static trees of different sizes."""
    shapes = [spec.tree_shape for spec in plan.specs.values() if spec.drafts == "jacobi" and spec.is_exact]
    return len({len(shape) for shape in shapes if isinstance(shape, tuple)}) >= MIN_SIZES


def _varies_grid(config: RunConfig) -> bool:
    """Return whether the run has variants, each of which sets the grid."""
    sections = [changes.get("tokenizer") for changes in config.variants.values()]
    return bool(sections) and all(isinstance(section, dict) and "grid" in section for section in sections)
