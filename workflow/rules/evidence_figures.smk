"""Figures (d) to (n) that draw stored tables. They inherit what they do not say from `draw_tradeoff`."""


use rule draw_tradeoff as draw_aggregation with:
    input:
        acceptance=stage("total_variation", "acceptance.csv"),
        verdict=stage("findings.json"),
    output:
        png=report(
            stage("figures", "fig_d_aggregation.png"), caption="../report/fig_d_aggregation.rst", category="Figures"
        ),
        pdf=stage("figures", "fig_d_aggregation.pdf"),
    log:
        log_of("draw_aggregation"),
    params:
        code=code("draw_aggregation.py"),
        script="draw_aggregation.py",
        settings=config["figures"],
        numbers=finding_numbers,
    message:
        "Drawing acceptance before and after aggregation"


use rule draw_tradeoff as draw_speed_bars with:
    input:
        summary=stage("summary.csv"),
        verdict=stage("findings.json"),
    output:
        png=report(
            stage("figures", "fig_f_speed_bars.png"), caption="../report/fig_f_speed_bars.rst", category="Figures"
        ),
        pdf=stage("figures", "fig_f_speed_bars.pdf"),
    log:
        log_of("draw_speed_bars"),
    params:
        code=code("draw_speed_bars.py"),
        script="draw_speed_bars.py",
        settings=config["figures"],
        metrics=config["metrics"],
        numbers=finding_numbers,
    message:
        "Drawing the bars of speed-up and accepted length"


use rule draw_tradeoff as draw_neighbours with:
    input:
        table=stage("ablations", "neighbours.csv"),
        verdict=stage("findings.json"),
    output:
        png=report(
            stage("figures", "fig_g_neighbours.png"), caption="../report/fig_g_neighbours.rst", category="Figures"
        ),
        pdf=stage("figures", "fig_g_neighbours.pdf"),
    log:
        log_of("draw_neighbours"),
    params:
        code=code("draw_neighbours.py"),
        script="draw_neighbours.py",
        settings=config["figures"],
        numbers=finding_numbers,
    message:
        "Drawing nearest against random neighbours"


use rule draw_tradeoff as draw_total_variation with:
    input:
        curves=stage("total_variation", "curves.csv"),
        law=stage("total_variation", "methods.csv"),
        summary=stage("summary.csv"),
        verdict=stage("findings.json"),
    output:
        png=report(
            stage("figures", "fig_h_total_variation.png"),
            caption="../report/fig_h_total_variation.rst",
            category="Figures",
        ),
        pdf=stage("figures", "fig_h_total_variation.pdf"),
    log:
        log_of("draw_total_variation"),
    params:
        code=code("draw_total_variation.py"),
        script="draw_total_variation.py",
        settings=config["figures"],
        metrics=config["metrics"],
        numbers=finding_numbers,
    message:
        "Drawing total variation against its bound"


use rule draw_tradeoff as draw_step_time with:
    input:
        steps=stage("latency", "steps.csv"),
        summary=stage("summary.csv"),
        verdict=stage("findings.json"),
    output:
        png=report(stage("figures", "fig_j_step_time.png"), caption="../report/fig_j_step_time.rst", category="Figures"),
        pdf=stage("figures", "fig_j_step_time.pdf"),
    log:
        log_of("draw_step_time"),
    params:
        code=code("draw_step_time.py"),
        script="draw_step_time.py",
        settings=config["figures"],
        metrics=config["metrics"],
        numbers=finding_numbers,
    message:
        "Drawing where a step's time goes"


use rule draw_tradeoff as draw_published with:
    input:
        published=PUBLISHED_RESULTS,
        summary=stage("summary.csv"),
        verdict=stage("findings.json"),
    output:
        png=report(stage("figures", "fig_l_published.png"), caption="../report/fig_l_published.rst", category="Figures"),
        pdf=stage("figures", "fig_l_published.pdf"),
    log:
        log_of("draw_published"),
    params:
        code=code("draw_published.py"),
        script="draw_published.py",
        settings=config["figures"],
        metrics=config["metrics"],
        numbers=finding_numbers,
    message:
        "Drawing published numbers beside this run's"


use rule draw_tradeoff as draw_divergence with:
    input:
        divergence=stage("total_variation", "divergence.csv"),
        summary=stage("summary.csv"),
        verdict=stage("findings.json"),
    output:
        png=report(
            stage("figures", "fig_m_divergence.png"), caption="../report/fig_m_divergence.rst", category="Figures"
        ),
        pdf=stage("figures", "fig_m_divergence.pdf"),
    log:
        log_of("draw_divergence"),
    params:
        code=code("draw_divergence.py"),
        script="draw_divergence.py",
        settings=config["figures"],
        metrics=config["metrics"],
        numbers=finding_numbers,
    message:
        "Drawing the divergence over the image"


use rule draw_tradeoff as draw_ablations with:
    input:
        tables=expand(stage("ablations", "{ablation}.csv"), ablation=ABLATIONS),
        verdict=stage("findings.json"),
    output:
        png=report(stage("figures", "fig_n_ablations.png"), caption="../report/fig_n_ablations.rst", category="Figures"),
        pdf=stage("figures", "fig_n_ablations.pdf"),
    log:
        log_of("draw_ablations"),
    params:
        code=code("draw_ablations.py"),
        script="draw_ablations.py",
        settings=config["figures"],
        numbers=finding_numbers,
    message:
        "Drawing the ablations"
