"""The table of figures: title, files and settings of each. Read while Snakemake builds the workflow: no matplotlib.

A figure is drawn by `draw_<name>` of `lantern_pipeline.figures.<name>`, which `workflow/scripts/draw_figure.py` calls
with what the files hold and with the settings, both by the names here. Its caption is a page of `workflow/report/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lantern_pipeline.config.paths import TOKENIZER, RunPlan

SUMMARY = "<results>/summary.csv"
GENERALITY = "<results>/generality.csv"


@dataclass(frozen=True)
class Figure:
    """One figure."""

    letter: str  # by which texts call it
    title: str  # how the report lists it
    files: Mapping[str, str | list[str]]  # argument's name -> paths; those of records hold {scatteritem} for the shard
    settings: Mapping[str, object] = field(default_factory=dict)  # argument's name -> value

    @property
    def draws_images(self) -> bool:
        """Whether it reads records of images, not tables alone."""
        return "records" in self.files


def figure_table(plan: RunPlan) -> dict[str, Figure]:
    """The figures that a run draws, by name, without those of what its config leaves out (ablations, draft models)."""
    config = plan.config
    of_rows = {"settings": config.metrics.model_dump(include={"headline_prompt_set", "headline_temperature"})}
    of_samples = {"settings": config.figures.model_dump(include={"sample_prompts", "sample_methods"})}
    of_proximity = {"settings": config.figures.model_dump(include={"proximity_prompts"}), "seed": config.seed}
    prompts = f"<results>/prompts/{plan.headline['prompt_set']}.jsonl"
    records = {"records": plan.records_of(**plan.headline, repeat=plan.repeats[0]), "prompts": prompts}
    images = {**records, "tokenizer": TOKENIZER}
    originals = plan.records_of(**plan.headline, repeat=plan.repeats[0], methods=["autoregressive"])
    nearest = "<results>/codebook/l2_normalised.safetensors"
    tables = "<results>/total_variation"
    ablations = plan.ablation_tables("csv")
    figures = {
        "samples": Figure("a", "Same prompts, same noise, every method", images, of_samples),
        "tradeoff": Figure("b", "What speed costs", {"summary": SUMMARY}, of_rows),
        "ambiguity": Figure("c", "Token-selection ambiguity", {"ambiguity": "<results>/quality/ambiguity.csv"}),
        "latent_proximity": Figure(
            "e",
            "Are near codes look-alikes?",
            {**images, "records": originals, "nearest_codes": nearest},
            of_proximity,
        ),
        "total_variation": Figure(
            "h",
            "Is delta a bound?",
            {"curves": f"{tables}/curves.csv", "methods": f"{tables}/methods.csv", "summary": SUMMARY},
            of_rows,
        ),
        "published": Figure("l", "Published numbers beside this run's", {"summary": SUMMARY}, of_rows),
        "ablations": Figure("n", "Ablations", {"table": ablations}),
        "frontier": Figure("q", "Speed against distance from the target's distribution", {"summary": SUMMARY}, of_rows),
        "generality": Figure("r", "Acceptance over the ambiguity of many targets", {"table": GENERALITY}),
    }
    is_off = {
        "total_variation": not plan.needs_draft_model,
        "ablations": not ablations,
        "generality": not config.variants,
    }
    return {name: figure for name, figure in figures.items() if not is_off.get(name)}
