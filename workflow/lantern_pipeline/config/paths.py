"""Plan of a run, computed from its config: methods, repeats with other seeds, and paths of all files.

Paths begin with Snakemake's path variable <results>, which Snakemake replaces by results/<experiment>. Snakemake
imports this module while it plans the jobs, so the module imports neither torch nor pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from lantern.methods import MethodSpec
from lantern_pipeline.config.cross_checks import metric_checkpoints
from lantern_pipeline.config.methods import expand_ablations, expand_methods
from lantern_pipeline.data.model_cards import FROM_FILES
from lantern_pipeline.fetch.entries import Resource, resource_of
from lantern_pipeline.measure.registry import TRAINED, metric_files, published_files, trained_models
from lantern_pipeline.settings.run_config import Drafter, MetricChoices, RunConfig

# Rules use this path and not the output of a rule, because the config decides which rule makes the model: the one that
# trains it or the one that converts published weights.
TOKENIZER = "<results>/tokenizer/model.safetensors"


def model_of(name: str) -> str:
    """Return the path of the weights of a metric model, which evaluates generated images.

    Args:
        name: "attribute_classifier" or "clip".
    """
    return f"<results>/{name}/model.safetensors"


def target_of(training_seed: int | str) -> str:
    """Return the path of the target model's weights for a training seed.

    Args:
        training_seed: the seed, or a Snakemake wildcard in its place.
    """
    return f"<results>/target/s{training_seed}/model.safetensors"


def drafter_of(training_seed: int | str, num_steps: int | None = None) -> str:
    """Return the path of the draft model's weights for a training seed.

    Args:
        training_seed: the seed, or a Snakemake wildcard in its place.
        num_steps: number of optimiser steps of a draft model that only an ablation uses; None for the draft model of
            the run.
    """
    steps = f"-{num_steps}steps" if num_steps else ""
    return f"<results>/drafter/s{training_seed}{steps}/model.safetensors"


def drafter_for(specs: Iterable[MethodSpec], training_seed: int | str) -> str | list[str]:
    """Return the path of the draft model's weights as input of a rule, or an empty list if no method needs it.

    Args:
        specs: the methods.
        training_seed: the seed, or a Snakemake wildcard in its place.
    """
    return drafter_of(training_seed) if any(spec.needs_draft_model for spec in specs) else []


def heads_of(training_seed: int | str) -> str:
    """Return the path of the heads' weights for a training seed.

    Shift heads predict later hidden states of the target, from which some methods sample their drafts.

    Args:
        training_seed: the seed, or a Snakemake wildcard in its place.
    """
    return f"<results>/heads/s{training_seed}/model.safetensors"


def heads_for(specs: Iterable[MethodSpec], training_seed: int | str) -> str | list[str]:
    """Return the path of the heads' weights as input of a rule, or an empty list if no method needs them.

    Shift heads predict later hidden states of the target, from which some methods sample their drafts.

    Args:
        specs: the methods.
        training_seed: the seed, or a Snakemake wildcard in its place.
    """
    return heads_of(training_seed) if any(spec.needs_heads for spec in specs) else []


def drafter_settings(steps: str, section: Drafter) -> dict[str, object]:
    """Return the settings for training a draft model: config section `drafter`, possibly with another number of steps.

    Args:
        steps: ending of the file name of an ablation's draft model, such as "-40steps". Its number replaces `num_steps`
            and `num_epochs`. It is empty for the draft model of the run.
        section: config section `drafter`.
    """
    settings, num_steps = section.model_dump(), steps.removeprefix("-").removesuffix("steps")
    return {**settings, "num_steps": int(num_steps), "num_epochs": None} if num_steps else settings


def nearest_codes_of(neighbours: str) -> str:
    """Return the path of a table of nearest codes.

    Args:
        neighbours: how the table ranks codes: by distance "l2" or "l2_normalised", or "random" as a control.
    """
    return f"<results>/codebook/{neighbours}.safetensors"


def table_of(spec: MethodSpec) -> str | list[str]:
    """Return the path of the table of nearest codes that a method reads, or an empty list if it reads none."""
    return nearest_codes_of(spec.neighbours) if spec.neighbours else []


def tables_of(specs: Iterable[MethodSpec]) -> list[str]:
    """Return the paths of the tables of nearest codes that some methods read, without repetition."""
    return sorted({nearest_codes_of(spec.neighbours) for spec in specs if spec.neighbours})


class RunPlan:
    """Plan of a run: its methods, prompt sets and repeats as the config states them, and the paths of its files.

    Attributes:
        config: the checked config.
        resources: name -> entry of config section `resources` (downloaded or copied files).
        runs: (method, temperature as text), in config order.
        specs: method id -> method.
        temperatures: the temperatures of all methods as text, in increasing order.
        ablations: name -> points of the ablation (method, temperature, sampling settings, draft model).
        repeats: names of the repeats with different seeds, such as "s0n1" for training seed 0 and noise seed 1.
        first: seeds of the first repeat. Ablations, output distributions and animations use only this repeat.
        prompt_sets: names of the prompt sets.
        headline: prompt set and temperature of the run's main results, from which conclusions are drawn.
        sampled: prompt set and temperature at which output distributions are measured. It equals `headline`, except
            that the run's highest temperature replaces temperature 0, at which nothing is sampled.
    """

    def __init__(self, config: RunConfig, resources: Mapping[str, Resource]) -> None:
        self.config = config
        self.resources = resources
        self.runs = [(run.spec, f"{run.temperature:g}") for run in expand_methods(config)]
        self.specs = {spec.method_id: spec for spec, _ in self.runs}
        self.temperatures = sorted({temperature for _, temperature in self.runs}, key=float)
        self.ablations = expand_ablations(config)
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
        """Return the ids of the methods that run at a temperature.

        Args:
            temperature: the temperature as text, such as "0.5".
        """
        return [spec.method_id for spec, found in self.runs if found == temperature]

    def run_params(self, temperature: str | None = None) -> list[tuple]:
        """Return methods and temperatures for a rule's parameter `runs`, as plain values that Snakemake can compare.

        Args:
            temperature: a temperature as text, to return only the methods that run at it; None returns all.

        Returns:
            One pair per method and temperature: (fields of the `MethodSpec` as a dict, temperature).
        """
        return [(asdict(spec), float(found)) for spec, found in self.runs if temperature in (None, found)]

    def drafters_of(self, ablation: str) -> dict[int | None, str]:
        """Return the paths of the draft models of an ablation, keyed by number of optimiser steps.

        Key None is the draft model of the run.
        """
        steps = [point.drafter_steps for point in self.ablations[ablation] if point.spec.needs_draft_model]
        return {number: drafter_of(self.first["training_seed"], number) for number in dict.fromkeys(steps)}

    def records_of(
        self, prompt_set: str, temperature: str, repeat: str, methods: Sequence[str] | None = None
    ) -> list[str]:
        """Return the paths of the files with generated codes and their statistics ("records"), one per method.

        Each path contains {scatteritem}, which Snakemake replaces by the number of a shard (part of the prompts).

        Args:
            prompt_set: name of the prompt set.
            temperature: temperature as text.
            repeat: name of the repeat, which states the seeds, such as "s0n1".
            methods: ids of the methods; None for all methods that run at this temperature.
        """
        return [
            f"<results>/generation/{method}/{prompt_set}/T{temperature}/{repeat}/{{scatteritem}}.safetensors"
            for method in methods or self.methods_at(temperature)
        ]

    def all_records(self) -> list[str]:
        """Return the paths of all files with generated codes of the run, in the form that `records_of` explains."""
        return [file for run_key in self._run_keys() for file in self.records_of(*run_key)]

    def quality_tables(self, ending: str) -> list[str]:
        """Return the paths of the quality tables (NLL, FID etc.) of all prompt sets, temperatures and repeats.

        Args:
            ending: "csv" for the tables with one line per method, "images.csv" for the tables with one line per image.
        """
        return [f"<results>/quality/{name}.T{found}.{repeat}.{ending}" for name, found, repeat in self._run_keys()]

    def latency_tables(self, ending: str) -> list[str]:
        """Return the paths of the latency tables, or of the timed images, one per repeat (run with other seeds).

        Args:
            ending: "csv" for the tables, or "images.safetensors" for the images whose decoding was timed.
        """
        return [f"<results>/latency/{repeat}.{ending}" for repeat in self.repeats]

    def ablation_tables(self, *endings: str) -> list[str]:
        """Return the paths of the tables of all ablations.

        Args:
            *endings: "csv" for tables with one line per method and settings, "images.csv" for one line per image.
        """
        return [f"<results>/ablations/{name}.{ending}" for name in self.ablations for ending in endings]

    def variant_tables(self) -> dict[str, list[str]]:
        """Return the paths of the tables by which the run is compared with its variants.

        A variant is a repetition of the run with some config keys changed, such as the size of the target.

        Returns:
            Kind of table -> paths, first of the run itself, then of each variant. The kinds are "summary", "paired"
            (differences from autoregressive decoding), "images" (metrics per image) and "ambiguity" (how unsure the
            target is of the next token).
        """
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
        """Return the files that metrics read (weights and reference images), as inputs of a rule: input name -> path.

        Args:
            metrics: keys of config section `metrics` that choose the metrics.
        """
        trained = {name: model_of(name) for name in TRAINED}
        return metric_files(metrics, trained, self.resources, "<results>/reference/features.safetensors")

    def model_files(self) -> list[str]:
        """Return the paths of all weights and tables of nearest codes that the run trains, computes or converts."""
        specs = [*self.specs.values(), *(point.spec for points in self.ablations.values() for point in points)]
        files = [TOKENIZER, *map(model_of, trained_models(self.config.metrics))]
        for seed in self.config.repeats.training_seeds:
            files.append(target_of(seed))
            files += [drafter_of(seed)] if self.needs_draft_model else []
            files += [heads_of(seed)] if any(spec.needs_heads for spec in specs) else []
        files += [file for name in self.ablations for file in self.drafters_of(name).values()]
        return list(dict.fromkeys([*files, *tables_of(specs)]))

    def report_files(self) -> list[str]:
        """Return the path of report.json, the training report, of each model that the run trains or converts."""
        models = [Path(file) for file in self.model_files()]
        return [file.with_name("report.json").as_posix() for file in models if file.name == "model.safetensors"]

    def files_from_elsewhere(self) -> list[str]:
        """Return the paths of files that the run uses but does not make, such as published weights.

        If a config value names an entry of section `resources`, the result has the path of the entry's manifest
        instead. A manifest is a small JSON file, written after a download, that names the downloaded files.
        """
        config = self.config
        values = [config.tokenizer.checkpoint, config.target.checkpoint]
        if config.text.encoder in FROM_FILES:
            values.append(config.text.checkpoint)
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
    """Return the paths of the answer files that participants of the preference study saved, sorted by name.

    The study is an HTML page on which readers choose between two images of a prompt.

    Args:
        folder: folder with the answer files, *.json.
        page: the HTML page of the study, for the error message.

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
