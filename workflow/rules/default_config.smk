"""Default config: config.yaml of the run's folder, or else config.yaml and resources.yaml of this folder.

The latter are for a workflow that uses this one as a module, and for a run in another folder.
"""

if workflow.modifier.skip_configfile:
    has_defaults = "resources" in config  # a variant of a run has them all
else:
    has_defaults = os.path.exists("config.yaml")
    if has_defaults:  # Snakemake has read it, apart from numbers such as 1e-3
        update_config(config, read_config("config.yaml"))
        update_config(config, GIVEN)

if not has_defaults:
    defaults = read_config(f"{HERE}/config.yaml")
    update_config(defaults, load_configfile(f"{HERE}/workflow/resources.yaml"))
    update_config(defaults, config)
    config.update(defaults)
