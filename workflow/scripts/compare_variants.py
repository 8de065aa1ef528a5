"""Join the results of the run and of its variants into one table and one HTML page."""

import pandas as pd

from lantern.io import write_text
from lantern_pipeline.archive.provenance import describe_maker
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.job.context import job_log
from lantern_pipeline.tables.generality import (
    COLUMNS,
    describe_changes,
    find_generality_claims,
    find_grid_side,
    measure_masses,
    target_rows,
)
from lantern_pipeline.tables.markdown import claim_cells, html_page, target_cells

with job_log(snakemake):
    files, params, parts = snakemake.input, snakemake.params, []
    options = {"num_resamples": params.settings["bootstrap_resamples"], "seed": params.seed}
    # The inputs and `targets` have the same order: first the run itself, then the variants.
    tables = zip(files.summary, files.paired, files.images, files.ambiguity, strict=True)
    for (name, changes), paths in zip(params.targets.items(), tables, strict=True):
        summary, paired, images, ambiguity = map(read_table, paths)
        rows = target_rows(summary, paired, images, params.settings, params.seed)
        masses = measure_masses(ambiguity, params.cfg_scale, options)
        about = {
            "target": name,
            "grid_side": find_grid_side(changes, params.grid),
            "differs": describe_changes(changes) or None,  # None for the run itself
            "made_by": describe_maker(),
        }
        # `masses` state the ambiguity of the target, the horizontal axis of figure `generality`.
        parts.append(rows.assign(**about, **masses))
    table = pd.concat(parts, ignore_index=True).reindex(columns=list(COLUMNS))
    write_table(snakemake.output.table, table)
    claims = claim_cells(find_generality_claims(table))
    write_text(snakemake.output.page, html_page("Results on other targets", target_cells(table), claims))
