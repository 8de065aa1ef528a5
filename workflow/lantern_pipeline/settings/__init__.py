"""Types of the configuration: one class per config section. The plan, Snakemake's rules and the jobs use them."""
