"""The plan of the run, and the parameters that rules share.

Module plan/paths.py of the pipeline has the paths of files, functions.smk has functions for inputs and outputs of rules.
"""

from lantern_pipeline.plan.partitions import check_partitions, remove_old_logs
from lantern_pipeline.plan.paths import TOKENIZER, drafter_for, drafter_of, heads_for, model_of, table_of, tables_of
from lantern_pipeline.plan.paths import target_of
from lantern_pipeline.plan.resources import MOST_MINUTES, growing
from lantern_pipeline.plan.run import load_run
from lantern_pipeline.data.model_cards import card_sections, hub_entries
from lantern_pipeline.job.fingerprint import code_fingerprint, labels_methods, method_files, row_fingerprint
from lantern_pipeline.job.machine import find_own_classes, limit_memory, set_job_environment, use_shipped_weights
from lantern_pipeline.schema.run_config import TableSettings

ENVIRONMENT = "../../environment.yml"
PIPELINE = Path(HERE, "workflow", "lantern_pipeline")

find_own_classes(config, workflow.configfiles)
try:
    # The card (description) of a published model overrides config.yaml, and the user's keys override the card.
    update_config(config, {**card_sections(config["model"]), "resources": hub_entries()})
    update_config(config, GIVEN)
    use_shipped_weights(config, HERE)
    # With --jobs, as in profiles/slurm, jobs run on other machines.
    RUN = load_run(config, workflow.configfiles, is_main=workflow.is_main_process, is_remote=workflow.nodes is not None)
except ValueError as error:
    sys.exit(str(error))
set_job_environment(HERE)
limit_memory(workflow)


onstart:
    try:
        check_partitions(workflow)
    except ValueError as error:
        sys.exit(str(error))
    if workflow.nodes is not None:
        remove_old_logs(workflow)


CONFIG, PLAN, SIZES = RUN.config, RUN.plan, RUN.sizes
SEED, GPU = CONFIG.seed, int(RUN.uses_gpu)

# Parameters of jobs that read images, of jobs that read captions, and of jobs that decode. Keys that do not change the
# result (device, batch_size, stepping, num_shards) are not parameters: see `execution_of` in job/context.py.
DATA = RUN.data_params()
TEXT = CONFIG.text_settings.model_dump()
TEXT_PARAMS = {"text": TEXT, "source": CONFIG.data.source}
# Snakemake compares lists by their repr, which tells all of a `MethodSpec`. A `MethodSpec` alone it would not compare, so
# parameters have lists of methods.
DECODING_PARAMS = {**TEXT_PARAMS, "sampling": CONFIG.sampling.model_dump(), "dtype": CONFIG.generation.dtype}
TABLE_SETTINGS = CONFIG.metrics.keys_of(TableSettings)


def code(script, *others, methods=lambda wildcards: ()):
    """Return a parameter of a rule that changes if the code of its script is edited, so that the rule runs again.

    It is a function that hashes the code. Snakemake calls it per job, so that no job hashes the scripts of other rules.

    Args:
        script: file name of the script. The modules that it imports are hashed, too.
        *others: further files to hash, relative to the folder lantern_pipeline.
        methods: function of the wildcards that returns the methods with which the script decodes. The files of their
            classes and their rows are hashed, too. A script that writes labels depends on the rows of all methods.
    """
    files = [PIPELINE.parent / "scripts" / script, *(PIPELINE / name for name in others)]

    def hashes(wildcards):
        own = list(methods(wildcards))
        labels = [row_fingerprint(PLAN.specs.values(), with_labels=True)] if labels_methods(files[0]) else []
        rows = [row_fingerprint(own)] if own else []
        return " ".join([*map(code_fingerprint, [*files, *method_files(own)]), *rows, *labels])

    return hashes
