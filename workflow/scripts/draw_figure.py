"""Draw one figure: read the inputs of the rule and pass them to the drawing function as keyword arguments."""

from importlib import import_module

import pandas as pd

from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.job.context import job_log


def read(name, files):
    """Read files as the value of the argument `name` of the drawing function. They are tables if no case names them."""
    match name:
        case "prompts":
            return read_prompts(files)
        case "records":
            # torch is imported only for figures that show images
            from lantern_pipeline.data.record_files import load_shards

            return load_shards(files, [prompt.id for prompt in read_prompts(snakemake.input.prompts)])
        case "tokenizer":
            from lantern_models.checkpoints.image_tokenizers import load_tokenizer

            return load_tokenizer(files)
        case "nearest_codes":
            from lantern.codebook import load_nearest_codes

            return load_nearest_codes(files)
    tables = [read_table(path) for path in ([files] if isinstance(files, str) else files)]
    return pd.concat(tables, ignore_index=True)


with job_log(snakemake):
    params, outputs = snakemake.params, snakemake.output
    draw = getattr(import_module(f"lantern_pipeline.figures.{params.figure}"), f"draw_{params.figure}")
    # Claims are only for the caption, which the rule itself fills in.
    arguments = {name: read(name, files) for name, files in snakemake.input.items() if name != "claims"}
    save_figure(draw(**arguments, **params.settings), [outputs.png, outputs.pdf], dpi=params.dpi)
