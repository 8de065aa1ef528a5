"""What a run's config plans, and where its files lie. Read while Snakemake builds the workflow: no torch, no pandas.

Paths begin with Snakemake's path variable <results>, which stands for results/<experiment>.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from lantern.methods import MethodSpec
from lantern_pipeline.config.cross_checks import metric_models_of
from lantern_pipeline.config.methods import expand_ablations, expand_methods
from lantern_pipeline.data.model_cards import FROM_FILES
from lantern_pipeline.fetch.entries import Resource, resource_of
from lantern_pipeline.measure.registry import TRAINED, metric_files, published_files, trained_models
from lantern_pipeline.settings.run_config import Drafter, MetricChoices, RunConfig

# A path and not an output by name, since the config decides whether the model is trained or converted.
TOKENIZER = "<results>/tokenizer/model.safetensors"


def model_of(name: str) -> str:
    """Attribute classifier or CLIP model."""
    return f"<results>/{name}/model.safetensors"


def target_of(training_seed: int | str) -> str:
    """Target model of a training seed."""
    return f"<results>/target/s{training_seed}/model.safetensors"


def drafter_of(training_seed: int | str, num_steps: int | None = None) -> str:
    """Draft model of a training seed; with a number of training steps of its own, an ablation's."""
    steps = f"-{num_steps}steps" if num_steps else ""
    return f"<results>/drafter/s{training_seed}{steps}/model.safetensors"


def drafter_for(specs: Iterable[MethodSpec], training_seed: int | str) -> str | list[str]:
    """Draft model that some methods run with; no file where none of them needs one."""
    return drafter_of(training_seed) if any(spec.needs_draft_model for spec in specs) else []


def drafter_settings(steps: str, section: Drafter) -> dict[str, object]:
    """Config section `drafter` of a draft model; an ablation's has training steps of its own, "-40steps"."""
    settings, num_steps = section.model_dump(), steps.removeprefix("-").removesuffix("steps")
    return {**settings, "num_steps": int(num_steps), "num_epochs": None} if num_steps else settings


def nearest_codes_of(neighbours: str) -> str:
    """Table of nearest codes by a distance."""
    return f"<results>/codebook/{neighbours}.safetensors"


def table_of(spec: MethodSpec) -> str | list[str]:
    """Table of nearest codes that a method reads; no file for an exact method."""
    return nearest_codes_of(spec.neighbours) if spec.neighbours else []


def tables_of(specs: Iterable[MethodSpec]) -> list[str]:
    """Tables of nearest codes that some methods read."""
    return sorted({nearest_codes_of(spec.neighbours) for spec in specs if spec.neighbours})


class RunPlan:
    """What a checked config runs."""

    def __init__(self, config: RunConfig, resources: Mapping[str, Resource]) -> None:
        self.config = config
        self.resources = resources
        # (method, temperature as text), in the config's order
        self.runs = [(run.spec, f"{run.temperature:g}") for run in expand_methods(config)]
        self.specs = {spec.method_id: spec for spec, _ in self.runs}
        self.temperatures = sorted({temperature for _, temperature in self.runs}, key=float)
        self.ablations = expand_ablations(config)
        training_seeds = config.repeats.training_seeds
        noise_seeds = config.repeats.noise_seeds
        self.repeats = [f"s{t}n{n}" for t in training_seeds for n in noise_seeds]
        # Seeds of the first repeat, which ablations, output distributions and pictures are of.
        self.first = {"training_seed": training_seeds[0], "noise_seed": noise_seeds[0]}
        self.prompt_sets = list(config.prompt_sets)
        temperature = f"{config.metrics.headline_temperature:g}"
        self.headline = {"prompt_set": config.metrics.headline_prompt_set, "temperature": temperature}
        # Where output distributions are measured: at a greedy headline, the highest temperature that runs.
        self.sampled = {**self.headline, "temperature": self.temperatures[-1]} if temperature == "0" else self.headline

    @property
    def needs_draft_model(self) -> bool:
        """Whether a method of the table runs with a draft model."""
        return any(spec.needs_draft_model for spec in self.specs.values())

    def methods_at(self, temperature: str) -> list[str]:
        """Method ids that run at a temperature."""
        return [spec.method_id for spec, found in self.runs if found == temperature]

    def run_params(self, temperature: str | None = None) -> list[tuple]:
        """(Fields of the method, temperature) of all runs, or of those at a temperature."""
        return [(asdict(spec), float(found)) for spec, found in self.runs if temperature in (None, found)]

    def drafters_of(self, ablation: str) -> dict[int | None, str]:
        """Draft models that an ablation needs, by their number of training steps; None is the run's own."""
        steps = [point.drafter_steps for point in self.ablations[ablation] if point.spec.needs_draft_model]
        return {number: drafter_of(self.first["training_seed"], number) for number in dict.fromkeys(steps)}

    def records_of(
        self, prompt_set: str, temperature: str, repeat: str, methods: Sequence[str] | None = None
    ) -> list[str]:
        """Record files of all methods (or of some), with {scatteritem} for the shard."""
        return [
            f"<results>/generation/{method}/{prompt_set}/T{temperature}/{repeat}/{{scatteritem}}.safetensors"
            for method in methods or self.methods_at(temperature)
        ]

    def all_records(self) -> list[str]:
        """Record files of the whole run, with {scatteritem} for the shard."""
        return [file for place in self._places() for file in self.records_of(*place)]

    def quality_tables(self, ending: str) -> list[str]:
        """Quality tables of all prompt sets, temperatures and repeats: "csv" (one row a method), "images.csv", ..."""
        return [f"<results>/quality/{name}.T{found}.{repeat}.{ending}" for name, found, repeat in self._places()]

    def latency_tables(self, ending: str) -> list[str]:
        """Tables of latency, one a repeat: "csv"; or the images behind them, "images.safetensors"."""
        return [f"<results>/latency/{repeat}.{ending}" for repeat in self.repeats]

    def ablation_tables(self, *endings: str) -> list[str]:
        """Tables of all ablations: "csv" (one row a point), "images.csv"."""
        return [f"<results>/ablations/{name}.{ending}" for name in self.ablations for ending in endings]

    def variant_tables(self) -> dict[str, list[str]]:
        """What a run's variants are compared by, kind of table -> those of the run itself, then of each variant."""
        place, repeat = self.headline, self.repeats[0]
        tables = {
            "summary": "summary.csv",
            "paired": "paired.csv",
            "images": f"quality/{place['prompt_set']}.T{place['temperature']}.{repeat}.images.csv",
            "ambiguity": "quality/ambiguity.csv",
        }
        folders = ["<results>", *(f"<results>/variants/{name}" for name in self.config.variants)]
        return {kind: [f"{folder}/{file}" for folder in folders] for kind, file in tables.items()}

    def metric_inputs(self, metrics: MetricChoices) -> dict[str, str]:
        """Names and paths of the inputs by which images are measured."""
        trained = {name: model_of(name) for name in TRAINED}
        return metric_files(metrics, trained, self.resources, "<results>/reference/features.safetensors")

    def model_files(self) -> list[str]:
        """Weights and tables of codes that the run made or converted, and decodes or measures with."""
        specs = [*self.specs.values(), *(point.spec for points in self.ablations.values() for point in points)]
        files = [TOKENIZER, *map(model_of, trained_models(self.config.metrics))]
        for seed in self.config.repeats.training_seeds:
            files.append(target_of(seed))
            files += [drafter_of(seed)] if self.needs_draft_model else []
        files += [file for name in self.ablations for file in self.drafters_of(name).values()]
        return list(dict.fromkeys([*files, *tables_of(specs)]))

    def report_files(self) -> list[str]:
        """What was reported of each model that the run made or converted."""
        models = [Path(file) for file in self.model_files()]
        return [file.with_name("report.json").as_posix() for file in models if file.name == "model.safetensors"]

    def files_from_elsewhere(self) -> list[str]:
        """Files from elsewhere that the run used: manifests, or the user's own copies."""
        config = self.config
        values = [config.tokenizer.checkpoint, config.target.checkpoint]
        if config.text.encoder in FROM_FILES:
            values.append(config.text.checkpoint)
        if self.needs_draft_model or any(map(self.drafters_of, self.ablations)):
            values.append(config.drafter.checkpoint)
        values += [model.checkpoint for model in metric_models_of(config).values()]
        values += [entry.file for entry in config.prompt_sets.values()]
        found = [resource_of(value, self.resources) for value in values if value]
        published = published_files(config.metrics, self.resources)
        return list(dict.fromkeys([*found, *published.values()]))

    def _places(self) -> list[tuple[str, str, str]]:
        return [
            (name, temperature, repeat)
            for name in self.prompt_sets
            for temperature in self.temperatures
            for repeat in self.repeats
        ]


def answer_files(folder: Path | str, page: Path | str) -> list[str]:
    """The *.json files that readers of the study's `page` saved and that lie in `folder`, sorted."""
    files = sorted(file.as_posix() for file in Path(folder).glob("*.json"))
    if not files:
        raise ValueError(
            f"there is no answer file in {folder}: let readers open {page} (`snakemake build_study` writes it), put "
            "the .json files that they save into that folder, or name another one in the config key study.answers"
        )
    return files
