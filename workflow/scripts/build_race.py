"""Write an HTML page and an animation, in which methods generate the same prompt side by side at the measured speed.

The page has several prompts, the animation one.
"""

from lantern.io import write_text
from lantern_models.checkpoints.image_tokenizers import load_tokenizer
from lantern_pipeline.data.image_files import code_positions, decode_images, to_pixels
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.job.context import job_log
from lantern_pipeline.measure.speed.latency import load_timed_images
from lantern_pipeline.pages.race import build_page
from lantern_pipeline.pages.race_animation import draw_race

with job_log(snakemake) as log:
    files = snakemake.input
    # Only codes and times are stored, from `measure_latency`, so images are decoded here.
    timed, tokenizer = load_timed_images(files.images), load_tokenizer(files.tokenizer)
    prompts = [prompt for path in files.prompts for prompt in read_prompts(path) if prompt.id in set(timed.prompt_ids)]

    def draw(codes):
        """Decode codes, integer (images, tokens), to pixels, uint8 (images, height, width, 3)."""
        return to_pixels(decode_images(tokenizer, codes))

    positions = code_positions(tokenizer, timed.codes)
    page = build_page(timed, prompts, draw, positions)
    write_text(snakemake.output.page, page)
    draw_race(snakemake.output.picture, timed, prompts, draw, positions)
    log.info("%d bytes for at most %d prompts", len(page), len(prompts))
