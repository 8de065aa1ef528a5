"""Writes the table of codes whose probabilities under the target rise and fall together over held-out contexts."""

import torch

from lantern.checkpoints.target import load_target
from lantern.codebook import co_varying_codes
from lantern.io import save_tensors
from lantern_pipeline.data.code_dataset import load_codes
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.measure.likelihood import select_codes, teacher_forced_logits
from lantern_pipeline.runtime.job import job_log, resolve_device

CHUNK = 16  # images; a chunk of 16 x 64 contexts and 1024 codes takes 4 MB

with job_log(snakemake) as log, torch.inference_mode():
    params, files, device = snakemake.params, snakemake.input, resolve_device(snakemake.config["device"])
    encoder = make_text_encoder(params.text, params.source, files.text)
    data = load_codes(files.codes, files.captions, encoder)
    target, num_images = load_target(files.target).to(device), min(params.num_images, len(data))

    def batches():
        """Guided probabilities of the images' positions, (contexts, vocab)."""
        for begin in range(0, num_images, CHUNK):
            indices = torch.arange(begin, min(begin + CHUNK, num_images))
            codes, features, mask = (part.to(device) for part in data.batch(indices))
            logits = teacher_forced_logits(target, features, mask, codes, params.cfg_scale)
            yield select_codes(target, codes, logits)[1].flatten(0, 1).softmax(-1)

    table = co_varying_codes(batches(), params.num_neighbours)
    metadata = {"neighbours": "probability", "num_images": num_images, "cfg_scale": params.cfg_scale}
    save_tensors(snakemake.output[0], {"nearest_codes": table.cpu()}, metadata)
    log.info("%d co-varying codes of %d codes from %d images", table.shape[1], len(table), num_images)
