"""Types of the configuration, one class per config section, for the plan, Snakemake's rules and the jobs."""
