"""Write the table of nearest codes of all codes by one distance, the wildcard `neighbours`."""

from lantern.codebook import nearest_codes
from lantern.io import save_tensors
from lantern_models.checkpoints.image_tokenizers import load_tokenizer
from lantern_pipeline.job.context import job_log

with job_log(snakemake) as log:
    params, neighbours = snakemake.params, snakemake.wildcards.neighbours
    # the stored vectors: for l2_normalised, `nearest_codes` itself gives them unit length
    codebook = load_tokenizer(snakemake.input.tokenizer).codebook.detach()
    table = nearest_codes(codebook, params.num_neighbours, neighbours, params.seed)
    metadata = {"neighbours": neighbours, "codebook_size": len(codebook), "seed": params.seed}
    save_tensors(snakemake.output[0], {"nearest_codes": table}, metadata)
    log.info("%d nearest codes of %d codes by %s", table.shape[1], len(codebook), neighbours)
