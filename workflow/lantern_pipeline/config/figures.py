"""The table of figures: title, files, settings and caption of each. Read while Snakemake plans: no matplotlib.

A figure is drawn by `draw_<name>` of `lantern_pipeline.figures.<name>`, which `workflow/scripts/draw_figure.py` calls
with the contents of the files and with the settings, both by the names here.
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
    # Text under the figure, reStructuredText. {name} is a text of `claims.describe_setting`; of a figure without the
    # summary, prompt_set, temperature or cfg_scale. {config.section.key} is a value of the config.
    caption: str = ""

    @property
    def draws_images(self) -> bool:
        """Whether it reads records of images, not tables alone."""
        return "records" in self.files


def figure_table(plan: RunPlan) -> dict[str, Figure]:
    """Return the figures that a run draws, by name, without those of what its config leaves out."""
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
        "samples": Figure(
            "a",
            "Same prompts, same noise, every method",
            images,
            of_samples,
            caption=(
                "**Same prompts, same noise, every method.** Rows are the first prompts of the set {prompt_set} "
                "(not a choice), columns methods at temperature {temperature} and guidance scale {cfg_scale}; of "
                "every preset the first. The number under an image is its tokens per forward pass of the target "
                "model: 1 without guesses. Exact methods that use the target's own noise repeat the autoregressive "
                "image token for token; EAGLE-1 keeps the distribution, so its images are others of the same "
                "quality."
            ),
        ),
        "tradeoff": Figure(
            "b",
            "What speed costs",
            {"summary": SUMMARY},
            of_rows,
            caption=(
                "**What speed costs.** Right is faster: speed-up over our own autoregressive decoder at batch 1 "
                "(left; {autoregressive_latency_ms} ms an image, {num_timed} prompts timed in pairs) and tokens per "
                "forward pass of the target (right). Top: negative log-likelihood (NLL) of the tokens under the "
                "target; off the dashed line, above or below it, a method has left the target's distribution. "
                "Bottom, where it is measured: share of the prompt's attributes that a classifier reads back. "
                "{prompts} of the set {prompt_set}, temperature {temperature}. A curve runs over a method's grid. "
                "Bars are 95 % bootstrap intervals over prompts; methods share their noise, so that differences "
                "between them are smaller than the bars suggest."
            ),
        ),
        "ambiguity": Figure(
            "c",
            "Token-selection ambiguity",
            {"ambiguity": "<results>/quality/ambiguity.csv"},
            caption=(
                "**Token-selection ambiguity.** Probability that the target gives its best next token (top) and its "
                "ten best (bottom), at every position of held-out images, temperature 1, without guidance and at "
                "guidance scale {cfg_scale}; vertical lines are means. A language model is nearly sure of most "
                "tokens. This target, like published ones, spreads its mass over many look-alike codes: that "
                "starves drafts of acceptance, and is what relaxed decoding answers."
            ),
        ),
        "latent_proximity": Figure(
            "e",
            "Are near codes look-alikes?",
            {**images, "records": originals, "nearest_codes": nearest},
            of_proximity,
            caption=(
                "**Are near codes look-alikes?** First images of the set {prompt_set} (not a choice), drawn by "
                "autoregressive decoding at temperature {temperature}, and the same with *every* token replaced by "
                "its 1st, 10th and 100th nearest code (or the last that the table keeps) and by a random one. "
                "Below: mean peak signal-to-noise ratio (PSNR) to the original, in dB, higher is closer. Relaxed "
                "decoding replaces some tokens, never all, and the target sees each replacement before it goes on."
            ),
        ),
        "total_variation": Figure(
            "h",
            "Is delta a bound?",
            {"curves": f"{tables}/curves.csv", "methods": f"{tables}/methods.csv", "summary": SUMMARY},
            of_rows,
            caption=(
                "**Is delta a bound?** Top: total variation (TV; 0: equal, 1: disjoint) between the distributions "
                "of the emitted token and of the target's, against the bound that was asked for. It is enumerated "
                "at the same nodes for all rules, visited by exact decoding on {config.total_variation.num_images} "
                "images, with k = {config.total_variation.k} nearest codes. Lines are means over nodes with 95 % "
                "bootstrap intervals over images, dotted lines 95th percentiles. Above the grey line delta is a "
                "knob and no guarantee; the bounded rule lies below it at every node, by proof. Both axes are "
                "logarithmic; smaller values are drawn on the lower end.\n\n"
                "Bottom: this run's relaxed methods, each over the nodes that it met itself, with 95 % intervals, "
                "and the delta that each was given. Open marks are the share of substituted tokens: an upper bound "
                "of TV. TV says how the distribution changes, not whether the change can be seen."
            ),
        ),
        "published": Figure(
            "l",
            "Published numbers beside this run's",
            {"summary": SUMMARY},
            of_rows,
            caption=(
                "**Published numbers, beside ours and not comparable with them.** Speed-ups as printed (left) and "
                "this run's (right, with 95 % intervals), each over the autoregressive decoding of its own source. "
                "Models, GPUs, image sizes and data differ: LlamaGen-XL has 775 million parameters and draws 256 or "
                "1024 tokens, this run's target is small enough for a CPU. Read each panel for the order of methods "
                "within a line, never across panels. Markers that would hide each other are shifted up and down. T "
                "is the temperature, where our source states it.\n\n"
                "Sources: LANTERN (arXiv 2410.03355), COOL-SD (arXiv 2601.09212), SCD (arXiv 2510.24211) and GSD "
                "(arXiv 2508.07747), from summaries by others; LANTERN++ (arXiv 2502.06352) and SJD++ (arXiv "
                '2512.07503), their abstracts, an "up to"; PathRelax (arXiv 2606.10492), its abstract; SJD-PAC '
                "(arXiv 2603.18599), its code's README, SJD measured again. Measured again by others: VVS (arXiv "
                "2511.13587), COOL-SD, CIAR (arXiv 2603.25463), MuLo-SD (arXiv 2601.05149), PJD (arXiv 2606.05703). "
                "Left out are PAR, LPD, FlashAR and DiDA, which train the model anew. All numbers, with grade and "
                "notes, are in ``workflow/lantern_pipeline/tables/published_results.csv``."
            ),
        ),
        "ablations": Figure(
            "n",
            "Ablations",
            {"table": ablations},
            caption=(
                "**Ablations.** One panel per ablation, a line per variant, on {config.ablations.num_prompts} "
                "prompts of the set {prompt_set}: tokens per forward pass of the target (left) and rise of the "
                "negative log-likelihood (NLL) over autoregressive decoding of the same noise and sampling settings "
                "(right). Labels name what differs within the panel. Bars are 95 % bootstrap intervals over "
                'prompts, dashed lines autoregressive decoding. With so few prompts, overlapping bars mean "not '
                'told apart", not "equal".'
            ),
        ),
        "frontier": Figure(
            "q",
            "Speed against distance from the target's distribution",
            {"summary": SUMMARY},
            of_rows,
            caption=(
                "**Speed against distance from the target's distribution.** Total variation between the "
                "distributions of the emitted and of the target's token, over speed-up (left) and tokens per "
                "forward pass of the target (right); lower right is better. The mean over verified nodes; where "
                "drafts share the target's noise and no more is known, the share of substitutions, which bounds it. "
                "The axis is that of square roots, so that small distances can be told apart. A line runs over a "
                "method's grid. Filled markers have a trained draft model, open ones none. Below: methods that "
                "follow the target's distribution, and those whose total variation at a node is not known, since "
                "their drafts do not follow the distributions that they are verified with. Horizontal bars are 95 % "
                "bootstrap intervals of the speed over prompts; the intervals of the total variation stand in the "
                "table alone. {prompts} of the set {prompt_set}, temperature {temperature}."
            ),
        ),
        "generality": Figure(
            "r",
            "Acceptance over the ambiguity of many targets",
            {"table": GENERALITY},
            caption=(
                "**Acceptance over the ambiguity of many targets.** Left: tokens per forward of the target, a "
                "marker per method and target; filled markers are relaxed methods, open ones exact. Right: by how "
                "much a relaxed method exceeds the exact one on the same drafts and tree. Further right, a target's "
                "ten best tokens hold less probability (guided, on held-out images). The targets, named above, "
                "differ from *base* in one thing each: family, heads of keys and values, codebook, grid, or "
                "prompts. Dashed lines are least-squares fits, for the eye. Bars are 95 % bootstrap intervals over "
                "prompts."
            ),
        ),
    }
    is_off = {
        "total_variation": not plan.needs_draft_model,
        "ablations": not ablations,
        "generality": not config.variants,
    }
    return {name: figure for name, figure in figures.items() if not is_off.get(name)}
