"""Plan of a run, computed from its config, and the paths of files by which rules refer to each other.

Paths begin with Snakemake's path variable <results>, which stands for results/<experiment>, or for the folder of a
variant. A seed in a path may also be a wildcard such as "{training_seed}".

The module imports neither torch nor pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lantern.methods import MethodSpec
from lantern_pipeline.data.model_cards import FROM_FILES
from lantern_pipeline.fetch.entries import Resource, resource_of
from lantern_pipeline.measure.registry import TRAINED, metric_files, published_files, trained_models
from lantern_pipeline.plan.cross_checks import metric_checkpoints
from lantern_pipeline.plan.methods import Expansion
from lantern_pipeline.schema.run_config import Drafter, MetricChoices, RunConfig

# Rules use this path and not the output of a rule, because the config decides which rule makes the model: the one that
# trains it or the one that converts published weights.
TOKENIZER = "<results>/tokenizer/model.safetensors"


def model_of(name: str) -> str:
    """Return the path of a metric model, "attribute_classifier" or "clip"."""
    return f"<results>/{name}/model.safetensors"


def target_of(training_seed: int | str) -> str:
    """Return the path of the target, which the run trains or converts."""
    return f"<results>/target/s{training_seed}/model.safetensors"


def drafter_of(training_seed: int | str, num_steps: int | None = None) -> str:
    """Return the path of the draft model.

    Args:
        num_steps: training steps of a draft model that only an ablation uses; None for the draft model of the run.
    """
    steps = f"-{num_steps}steps" if num_steps else ""
    return f"<results>/drafter/s{training_seed}{steps}/model.safetensors"


def drafter_for(specs: Iterable[MethodSpec], training_seed: int | str) -> str | list[str]:
    """Return the path of the draft model. If no method uses it, return an empty list, Snakemake's form of no input."""
    return drafter_of(training_seed) if any(spec.needs_draft_model for spec in specs) else []


def heads_of(training_seed: int | str) -> str:
    """Return the path of the shift heads or of the state head, whichever the run trains."""
    return f"<results>/heads/s{training_seed}/model.safetensors"


def heads_for(specs: Iterable[MethodSpec], training_seed: int | str) -> str | list[str]:
    """Return the path of the heads, or an empty list if no method uses them."""
    return heads_of(training_seed) if any("heads" in spec.drafts_row.trained for spec in specs) else []


def drafter_settings(steps: str, section: Drafter) -> dict[str, object]:
    """Return the settings for training a draft model: config section `drafter`.

    Args:
        steps: wildcard in the file name of an ablation's draft model, such as "-40steps", which replaces the number of
            steps. It is empty for the draft model of the run.
    """
    settings, num_steps = section.model_dump(), steps.removeprefix("-").removesuffix("steps")
    # num_epochs would take precedence over num_steps.
    return {**settings, "num_steps": int(num_steps), "num_epochs": None} if num_steps else settings


def nearest_codes_of(neighbours: str) -> str:
    """Return the path of the table of nearest codes by distance "l2", "l2_normalised" or "random"."""
    return f"<results>/codebook/{neighbours}.safetensors"


def table_of(spec: MethodSpec) -> str | list[str]:
    """Return the path of the table of nearest codes that a method reads, or an empty list if it reads none."""
    return nearest_codes_of(spec.neighbours) if spec.neighbours else []


def tables_of(specs: Iterable[MethodSpec]) -> list[str]:
    """Return the paths of the tables of nearest codes that some methods read, without repetition."""
    return sorted({nearest_codes_of(spec.neighbours) for spec in specs if spec.neighbours})


class RunPlan:
    """Methods, prompt sets and repeats of a run, and the paths of its files.

    Temperatures are text, because they are parts of paths.

    Attributes:
        resources: name -> entry of config section `resources`.
        runs: (method, temperature), in config order.
        specs: method id -> method.
        temperatures: those of all methods, in increasing order.
        ablations: name -> points of the ablation.
        repeats: names of the repeats, such as "s0n1" for training seed 0 and noise seed 1.
        first: seeds of the first repeat, the only one for ambiguity, ablations, total variation, premise and animation.
        headline: prompt set and temperature of the main results.
        sampled: `headline`, with the highest temperature in place of 0. Distributions are measured there, because
            nothing is sampled at temperature 0.
    """

    def __init__(self, config: RunConfig, resources: Mapping[str, Resource], methods: Expansion) -> None:
        self.config = config
        self.resources = resources
        self.runs = [(run.spec, f"{run.temperature:g}") for run in methods.runs]
        self.specs = {spec.method_id: spec for spec, _ in self.runs}
        self.temperatures = sorted({temperature for _, temperature in self.runs}, key=float)
        self.ablations = methods.ablations
        training_seeds = config.repeats.training_seeds
        noise_seeds = config.repeats.noise_seeds
        self.repeats = [f"s{t}n{n}" for t in training_seeds for n in noise_seeds]
        self.first = {"training_seed": training_seeds[0], "noise_seed": noise_seeds[0]}
        self.prompt_sets = list(config.prompt_sets)
        temperature = f"{config.metrics.headline_temperature:g}"
        self.headline = {"prompt_set": config.metrics.headline_prompt_set, "temperature": temperature}
        self.sampled = {**self.headline, "temperature": self.temperatures[-1]} if temperature == "0" else self.headline

    @property
    def needs_draft_model(self) -> bool:
        """True if a method in config key `methods` uses a draft model."""
        return any(spec.needs_draft_model for spec in self.specs.values())

    def methods_at(self, temperature: str) -> list[str]:
        """Return the ids of the methods that run at a temperature, in config order."""
        return [spec.method_id for spec, found in self.runs if found == temperature]

    def run_params(self, temperature: str | None = None) -> list[tuple[MethodSpec, float]]:
        """Return `runs`, or those at a temperature, as a parameter of a rule, with temperatures as numbers."""
        return [(spec, float(found)) for spec, found in self.runs if temperature in (None, found)]

    def drafters_of(self, ablation: str) -> dict[int | None, str]:
        """Return the draft models of an ablation by training steps. Key None is the draft model of the run."""
        steps = [point.drafter_steps for point in self.ablations[ablation] if point.spec.needs_draft_model]
        return {number: drafter_of(self.first["training_seed"], number) for number in dict.fromkeys(steps)}

    def records_of(
        self, prompt_set: str, temperature: str, repeat: str, methods: Sequence[str] | None = None
    ) -> list[str]:
        """Return the paths of records, one per method. Each contains {scatteritem} in place of the number of a shard.

        Args:
            methods: ids of the methods; None for all that run at this temperature.
        """
        return [
            f"<results>/generation/{method}/{prompt_set}/T{temperature}/{repeat}/{{scatteritem}}.safetensors"
            for method in methods or self.methods_at(temperature)
        ]

    def all_records(self) -> list[str]:
        """Return the paths of all records of the run, with {scatteritem}."""
        return [file for run_key in self._run_keys() for file in self.records_of(*run_key)]

    def quality_tables(self, ending: str) -> list[str]:
        """Return the paths of the quality tables of all prompt sets, temperatures and repeats.

        Args:
            ending: "csv" for one row per method, "images.csv" for one row per image.
        """
        return [f"<results>/quality/{name}.T{found}.{repeat}.{ending}" for name, found, repeat in self._run_keys()]

    def latency_tables(self, ending: str) -> list[str]:
        """Return the latency tables ("csv") or the timed images ("images.safetensors") of all repeats."""
        return [f"<results>/latency/{repeat}.{ending}" for repeat in self.repeats]

    def ablation_tables(self, *endings: str) -> list[str]:
        """Return the tables of all ablations, with the same endings as quality tables."""
        return [f"<results>/ablations/{name}.{ending}" for name in self.ablations for ending in endings]

    def variant_tables(self) -> dict[str, list[str]]:
        """Return the tables by which the run is compared with its variants.

        Returns:
            Kind of table -> paths, first of the run itself, then of each variant.
        """
        # Names as in summarise, measure_quality and measure_ambiguity, but each in the folders of several runs.
        repeat = self.repeats[0]
        file_ending = f"T{self.headline['temperature']}.{repeat}.images.csv"
        tables = {
            "summary": "summary.csv",
            "paired": "paired.csv",
            "images": f"quality/{self.headline['prompt_set']}.{file_ending}",
            "ambiguity": "quality/ambiguity.csv",
        }
        folders = ["<results>", *(f"<results>/variants/{name}" for name in self.config.variants)]
        return {kind: [f"{folder}/{file}" for folder in folders] for kind, file in tables.items()}

    def metric_inputs(self, metrics: MetricChoices) -> dict[str, str]:
        """Return the weights and reference images that metrics read, as inputs of a rule: input name -> path."""
        trained = {name: model_of(name) for name in TRAINED}
        return metric_files(metrics, trained, self.resources, "<results>/reference/features.safetensors")

    def model_files(self) -> list[str]:
        """Return the weights and tables of nearest codes that the run trains, computes or converts."""
        # Methods of ablations count, too: only they may need heads or another table.
        specs = [*self.specs.values(), *(point.spec for points in self.ablations.values() for point in points)]
        files = [TOKENIZER, *map(model_of, trained_models(self.config.metrics))]
        for seed in self.config.repeats.training_seeds:
            files.append(target_of(seed))
            files += [drafter_of(seed)] if self.needs_draft_model else []
            files += [heads_of(seed)] if any("heads" in spec.drafts_row.trained for spec in specs) else []
        files += [file for name in self.ablations for file in self.drafters_of(name).values()]
        return list(dict.fromkeys([*files, *tables_of(specs)]))

    def report_files(self) -> list[str]:
        """Return report.json, the training report, of each model that the run trains or converts."""
        models = [Path(file) for file in self.model_files()]
        # tables of nearest codes have no report
        return [file.with_name("report.json").as_posix() for file in models if file.name == "model.safetensors"]

    def files_from_elsewhere(self) -> list[str]:
        """Return the files that the run uses but does not make. A resource appears as its manifest."""
        config = self.config
        values = [config.tokenizer.checkpoint, config.target.checkpoint]
        if config.text.encoder in FROM_FILES:  # other encoders ignore the key
            values.append(config.text.checkpoint)
        # An ablation may use the draft model even if no main method does: then its dict of draft models is not empty.
        if self.needs_draft_model or any(map(self.drafters_of, self.ablations)):
            values.append(config.drafter.checkpoint)
        values += metric_checkpoints(config).values()
        values += [entry.file for entry in config.prompt_sets.values()]
        found = [resource_of(value, self.resources) for value in values if value]
        published = published_files(config.metrics, self.resources)
        return list(dict.fromkeys([*found, *published.values()]))

    def _run_keys(self) -> list[tuple[str, str, str]]:
        return [
            (name, temperature, repeat)
            for name in self.prompt_sets
            for temperature in self.temperatures
            for repeat in self.repeats
        ]


def answer_files(folder: Path | str, page: Path | str) -> list[str]:
    """Return the answer files (*.json) that readers of the preference study saved, sorted by name.

    Args:
        page: HTML page of the study, for the error message.

    Raises:
        ValueError: the folder has no such file.
    """
    files = sorted(file.as_posix() for file in Path(folder).glob("*.json"))
    if not files:
        raise ValueError(
            f"there is no answer file in {folder}: let readers open {page} (`snakemake build_study` writes it), put "
            "the .json files that they save into that folder, or name another one in the config key study.answers"
        )
    return files
