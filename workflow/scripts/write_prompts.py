"""Write one prompt set, from a split of the data source or from the user's file, after checking its prompts."""

from lantern_pipeline.data.image_sources import make_source
from lantern_pipeline.data.prompt_files import load_prompt_set, write_prompts
from lantern_pipeline.data.text_encoders import make_text_encoder, unknown_words
from lantern_pipeline.fetch.manifest import resource_path
from lantern_pipeline.job.context import job_log
from lantern_pipeline.schema.run_config import PromptSet, RunConfig, TextSettings, check_prompt_count

with job_log(snakemake) as log:
    params = snakemake.params
    settings, text = PromptSet(**params.settings), TextSettings(**params.text)
    source = make_source(params.source["data"], params.seed)
    if settings.file:
        prompts = load_prompt_set(resource_path(snakemake.input[0]), settings, params.seed)
    else:
        prompts = source.prompts(settings.split, settings.num)
    texts = [prompt.text for prompt in prompts]
    # Encoded for the errors: a prompt that the encoder refuses stops the run before anything is computed.
    if text.encoder != "t5":  # T5 encodes every word and cuts long prompts
        make_text_encoder(text, params.source["data"]["source"], snakemake.input.tokenizer).encode(texts)
    # If the images are a folder, which has no fixed vocabulary, the target was trained on its captions.
    if text.encoder == "words" and source and source.vocabulary is None:
        words = unknown_words(texts, source.captions("train", range(source.num_train)))
        if words:
            log.warning("no training caption has the words %s: the target has not learnt them", ", ".join(words)[:500])
    # Only checks read the rest of the config. It is not a parameter, because then every change of the config would
    # generate all images again.
    check_prompt_count(snakemake.wildcards.prompt_set, len(prompts), RunConfig(**snakemake.config))
    write_prompts(snakemake.output[0], prompts)
    log.info("wrote %d prompts", len(prompts))
