"""Table of the figures of a run: title, files, settings and caption of each.

Function `draw_<name>` of module `lantern_pipeline.figures.<name>` draws the figure <name>. Script draw_figure.py calls
it with the contents of the files and the settings as keyword arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lantern_pipeline.config.paths import TOKENIZER, RunPlan
from lantern_pipeline.settings.run_config import RunConfig

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
        caption: text under the figure, in reStructuredText. It may contain {config.section.key}, a config value, or
            {name}, an entry of the dict that `claims.describe_setting` returns. If the figure does not read the summary
            table, only {prompt_set}, {temperature} and {cfg_scale} are filled in.
        package_files: further data, relative to lantern_pipeline/. A change of it draws the figure again.
    """

    letter: str
    title: str
    files: Mapping[str, str | list[str]]
    settings: Mapping[str, object] = field(default_factory=dict)
    caption: str = ""
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
        "samples": Figure(
            "a",
            "Same prompts, same noise, every method",
            images,
            of_samples,
            caption=(
                "**Same prompts, same noise, every method.** Each row is a prompt, the first ones of the prompt set "
                "{prompt_set} (not selected by hand). Each column is a method, the first one of each preset. "
                "Temperature {temperature}, guidance scale {cfg_scale}. The number below an image is its tokens per "
                "forward pass of the target model; it is 1 without drafts, and higher is faster.\n\n"
                "Exact methods that use the target's noise repeat the autoregressive image token for token. EAGLE-1 "
                "keeps the distribution only: its images are other samples of the same quality."
            ),
        ),
        "tradeoff": Figure(
            "b",
            "Speed and quality",
            {"summary": SUMMARY},
            of_rows,
            caption=(
                "**Speed and quality.** Horizontal axes, further right is faster: speed-up over Lantern's "
                "autoregressive decoding at batch 1 (left), and tokens per forward pass of the target (right). "
                "Vertical axes: negative log-likelihood (NLL) of the tokens under the target (top), and prompt "
                "accuracy (bottom, if measured), the fraction of the prompt's attributes that a classifier reads from "
                "the image; higher is better. The dashed line is the NLL of the target's samples. A method above or "
                "below it does not follow the target's distribution.\n\n"
                "{prompts} of the prompt set {prompt_set}, temperature {temperature}; {num_timed} prompts are timed. "
                "Autoregressive decoding takes {autoregressive_latency_ms} ms per image. A curve connects the "
                "settings of one method. Bars are 95 % bootstrap intervals over prompts. Methods share their noise, "
                "so differences between them are more certain than the bars suggest."
            ),
        ),
        "ambiguity": Figure(
            "c",
            "Token-selection ambiguity",
            {"ambiguity": "<results>/quality/ambiguity.csv"},
            caption=(
                "**Token-selection ambiguity.** Histograms of the target's top-1 probability (top) and top-10 "
                "probability (bottom) for the next token; further right is less ambiguous. Vertical lines are means. "
                "They are measured at every position of held-out images at temperature 1, without guidance and at "
                "guidance scale {cfg_scale}.\n\n"
                "A language model is nearly certain of most tokens. This target, like published ones, spreads its "
                "probability over many similar codes. Few drafts are therefore accepted, and relaxed decoding was "
                "made for this case."
            ),
        ),
        "latent_proximity": Figure(
            "e",
            "Do nearest codes look alike?",
            {**images, "records": originals, "nearest_codes": nearest},
            of_proximity,
            caption=(
                "**Do nearest codes look alike?** Each row is an image of autoregressive decoding, the first ones of "
                "the prompt set {prompt_set} (not selected by hand), at temperature {temperature}. Next to it, "
                "*every* token is replaced by its 1st, 10th or 100th nearest code (or the last one stored), or by a "
                "random code. Below: mean peak signal-to-noise ratio (PSNR) to the original, in dB; higher is "
                "closer.\n\n"
                "Relaxed decoding replaces only some tokens, and the target sees each replacement before it "
                "continues."
            ),
        ),
        "total_variation": Figure(
            "h",
            "Is delta a bound?",
            {"curves": f"{tables}/curves.csv", "methods": f"{tables}/methods.csv", "summary": SUMMARY},
            of_rows,
            caption=(
                "**Is delta a bound?** Total variation (TV) is the distance between the distributions of the emitted "
                "token and of the target's token: 0 if they are equal, 1 if they are disjoint. Smaller is better.\n\n"
                "Top: TV over delta, the bound that was set, for all acceptances at the same nodes. Above the grey "
                "line, TV exceeds delta, so delta is no bound. Both axes are logarithmic, and values that are too "
                "small are drawn at the lower end. The comparison uses k = {config.total_variation.k} nearest codes. "
                "Exact decoding visited the nodes on {config.total_variation.num_images} images, and TV is computed "
                "by enumeration. Lines are means over nodes with 95 % bootstrap intervals over images; dotted lines "
                "are 95th percentiles. The acceptance ``bounded`` is below the grey line at every node, by proof.\n\n"
                "Bottom: the relaxed methods of this run, each at the nodes that it visited, with 95 % intervals. "
                "Further left is better; a black tick is the delta of the method. Open markers show the fraction of "
                "substituted tokens, an upper bound of TV. TV measures a change of the distribution, not whether a "
                "person can see it."
            ),
        ),
        "published": Figure(
            "l",
            "Published numbers next to those of this run",
            {"summary": SUMMARY},
            of_rows,
            caption=(
                "**Published speed-ups next to those of this run; they are not comparable.** Left: speed-ups as "
                "published. Right: speed-ups of this run with 95 % intervals. Further right is faster. Each source "
                "compares with its own autoregressive decoding. Models, GPUs, image sizes and data differ: "
                "LlamaGen-XL has 775 million parameters and generates 256 or 1024 tokens, while this run's target is "
                "small enough for a CPU. Compare the order of methods within a panel, not values across panels. "
                "Overlapping markers are shifted up or down. T is the temperature, if the source states it.\n\n"
                "Numbers of LANTERN (arXiv 2410.03355), COOL-SD (arXiv 2601.09212), SCD (arXiv 2510.24211), GSD (arXiv "
                "2508.07747), PJD (arXiv 2606.05703) and SSD (arXiv 2606.20543) come from summaries by others. Numbers "
                'of LANTERN++ (arXiv 2502.06352) and SJD++ (arXiv 2512.07503) are the "up to" of their abstracts. '
                "PathRelax (arXiv 2606.10492): its abstract. "
                "SJD-PAC (arXiv 2603.18599): the README of its code, where SJD was measured again. Other repeated "
                "measurements come from VVS (arXiv 2511.13587), COOL-SD, CIAR (arXiv 2603.25463), MuLo-SD (arXiv "
                "2601.05149) and PJD. PAR, LPD, FlashAR and DiDA are left out, because they train "
                "another model. All numbers, with their grade and notes, are in "
                "``workflow/lantern_pipeline/tables/published_results.csv``."
            ),
            package_files=(PUBLISHED,),
        ),
        "ablations": Figure(
            "n",
            "Ablations",
            {"table": ablations},
            caption=(
                "**Ablations.** One panel per ablation and one line per variant. Left: tokens per forward pass of the "
                "target; further right is faster. Right: increase of the negative log-likelihood (NLL) over "
                "autoregressive decoding; closer to 0 is better. Both compare the same noise and sampling settings, "
                "on {config.ablations.num_prompts} prompts of the prompt set {prompt_set}. Labels state what differs "
                "within the panel. Bars are 95 % bootstrap intervals over prompts; dashed lines are autoregressive "
                "decoding. The number of prompts is small: overlapping bars do not show that two variants are equal."
            ),
        ),
        "premise": Figure(
            "p",
            "May nearest codes replace each other?",
            {"premise": PREMISE},
            caption=(
                "**May nearest codes replace each other?** LANTERN's premise is that they look alike. Horizontal axes: "
                "number k of nearest codes (solid lines) or of random codes (dashed lines), from which a replacement "
                "is taken. Grey lines: no code is replaced.\n\n"
                "Top: every code of {config.premise.num_images} held-out images is replaced by one of the k codes. "
                "Left: prompt accuracy, the fraction of the caption's attributes that a classifier reads from the "
                "image; higher is better. Right: distance from reconstructions of other held-out images, by features "
                "of a network that the title names; lower is better.\n\n"
                "Bottom: LANTERN's formula with one sampled draft, at nodes that exact decoding visited. Left: mean "
                "probability that the draft is accepted; higher is faster. Right: total variation between the "
                "distributions of the emitted token and of the target's token; lower is better. Total "
                "variation does not see whether codes look alike: the top shows that. Bands are 95 % bootstrap "
                "intervals over images.\n\n"
                "The line above the panels describes the target's next token at guidance scale {cfg_scale}."
            ),
        ),
        "frontier": Figure(
            "q",
            "Speed and distance from the target's distribution",
            {"summary": SUMMARY},
            of_rows,
            caption=(
                "**Speed and distance from the target's distribution.** Vertical axis: total variation between the "
                "distributions of the emitted token and of the target's token, on a square-root scale. Horizontal "
                "axes: speed-up (left) and tokens per forward pass of the target (right). Further right and lower is "
                "better.\n\n"
                "Total variation is the mean over verified nodes. If drafts share the target's noise and only a bound "
                "is known, the bound is shown: the fraction of substituted tokens. A line connects the settings of "
                "one method. Filled markers have a trained draft model; open markers have none. Methods whose total "
                "variation is 0 or unknown are listed below the panels, by speed only. It is unknown if the drafts do "
                "not follow the distributions with which they are verified.\n\n"
                "{prompts} of the prompt set {prompt_set}, temperature {temperature}. Horizontal bars are 95 % "
                "bootstrap intervals over prompts. The table has the intervals of the total variation."
            ),
        ),
        "generality": Figure(
            "r",
            "Tokens per forward pass on targets of different ambiguity",
            {"table": GENERALITY},
            caption=(
                "**Tokens per forward pass on targets of different ambiguity.** Horizontal axis: ambiguity, which is "
                "1 minus the probability of the ten most probable tokens, with guidance, on held-out images; further "
                "right is more ambiguous. Left: tokens per forward pass of the target; higher is faster. Right: gain "
                "of a relaxed method over the exact method with the same drafts and tree; higher is better. One "
                "marker per method and target: filled markers are relaxed, open ones exact.\n\n"
                "The targets, named above the panels, differ from *base* in one setting each: family, key/value "
                "heads, codebook, grid or prompts. Bars are 95 % bootstrap intervals over prompts. Dashed lines are "
                "least-squares fits, as a guide to the eye."
            ),
        ),
        "nodes": Figure(
            "s",
            "Tokens per forward pass over the nodes of the draft tree",
            {"summary": SUMMARY},
            {**of_rows, "trees": config.trees},
            caption=(
                "**Tokens per forward pass over the nodes of the draft tree**, for exact drafts without a trained "
                "model (*Jacobi*), with a draft model (*hybrid*) and with a small network in its place (*state head*). "
                "The prediction uses the same costs for both. Horizontal axes, logarithmic: number of drafts that a "
                "step verifies. Left: tokens per forward pass of the target; higher is faster. Right: speed-up at the "
                "lowest and the highest relative step cost that papers published for GPUs; it is predicted, not "
                "measured. One pair of costs is used for all sizes, although a step with more nodes costs more.\n\n"
                "{prompts} of the prompt set {prompt_set}, temperature {temperature}. Bars are 95 % bootstrap "
                "intervals over prompts. Every image equals that of autoregressive decoding, token for token."
            ),
        ),
        "grid_sizes": Figure(
            "t",
            "Tokens per forward pass on grids of different size",
            {"table": GENERALITY},
            caption=(
                "**Tokens per forward pass on grids of different size.** Horizontal axes: codes along a side of an "
                "image. Vertical axis: tokens per forward pass of the target; higher is faster.\n\n"
                "Left: measured by this run, with one line per method and one target per grid. Bars are 95 % bootstrap "
                "intervals over prompts. The targets also differ in how sure they are of the next token, as the table "
                "shows.\n\n"
                "Right: others' numbers (hollow markers) on published models, which are named above the panel. The "
                "legend has the arXiv number of the paper that states them. They are not comparable with the left "
                "panel, because models and data differ. Numbers are left out if their source does not determine the "
                "grid, or if the method needs a model that was trained specially for it. All of them are in "
                "``workflow/lantern_pipeline/tables/published_results.csv``."
            ),
            package_files=(PUBLISHED,),
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
