"""Figures (e), (i) and (k), that draw stored images. They inherit what they do not say from `draw_tradeoff`."""


use rule draw_tradeoff as draw_latent_proximity with:
    input:
        records=shards_of(**HEADLINE, repeat=REPEATS[0], methods=["autoregressive"]),
        prompts=stage("prompts", f"{HEADLINE['prompt_set']}.jsonl"),
        tokenizer=TOKENIZER,
        nearest=stage("codebook", "l2_normalised.safetensors"),
        verdict=stage("findings.json"),
    output:
        png=report(
            stage("figures", "fig_e_latent_proximity.png"),
            caption="../report/fig_e_latent_proximity.rst",
            category="Figures",
        ),
        pdf=stage("figures", "fig_e_latent_proximity.pdf"),
    log:
        log_of("draw_latent_proximity"),
    resources:
        mem_mb=growing(2500),
        runtime=growing(30),
    params:
        code=code("draw_latent_proximity.py"),
        script="draw_latent_proximity.py",
        settings=config["figures"],
        seed=SEED,
        numbers=finding_numbers,
    message:
        "Drawing images of near codes"


use rule draw_tradeoff as draw_acceptance_map with:
    input:
        records=headline_records(),
        prompts=stage("prompts", f"{HEADLINE['prompt_set']}.jsonl"),
        verdict=stage("findings.json"),
    output:
        png=report(
            stage("figures", "fig_i_acceptance_map.png"),
            caption="../report/fig_i_acceptance_map.rst",
            category="Figures",
        ),
        pdf=stage("figures", "fig_i_acceptance_map.pdf"),
    log:
        log_of("draw_acceptance_map"),
    resources:
        mem_mb=growing(2500),
        runtime=growing(10),
    params:
        code=code("draw_acceptance_map.py"),
        script="draw_acceptance_map.py",
        settings=config["figures"],
        grid=config["tokenizer"]["grid"],
        numbers=finding_numbers,
    message:
        "Drawing the maps of acceptance"


use rule draw_tradeoff as draw_pairs with:
    input:
        records=headline_records(),
        prompts=stage("prompts", f"{HEADLINE['prompt_set']}.jsonl"),
        tokenizer=TOKENIZER,
        verdict=stage("findings.json"),
    output:
        png=report(stage("figures", "fig_k_pairs.png"), caption="../report/fig_k_pairs.rst", category="Figures"),
        pdf=stage("figures", "fig_k_pairs.pdf"),
    log:
        log_of("draw_pairs"),
    resources:
        mem_mb=growing(3500),
        runtime=growing(15),
    params:
        code=code("draw_pairs.py"),
        script="draw_pairs.py",
        settings=config["figures"],
        numbers=finding_numbers,
    message:
        "Drawing pairs of images"
