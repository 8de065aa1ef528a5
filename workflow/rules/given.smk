"""Config keys that the user gives: files with --configfile, --config, or the config of a module.

They are read before the defaults.
"""

from copy import deepcopy

from snakemake.common.configfile import load_configfile
from snakemake.utils import update_config

if workflow.modifier.skip_configfile:  # this workflow is a module with a config
    GIVEN = deepcopy(config)
else:
    GIVEN, defaults = {}, load_configfile(f"{HERE}/config.yaml")
    for overlay in map(load_configfile, workflow.overwrite_configfiles):
        if overlay != defaults:  # the user may pass config.yaml itself with --configfile
            update_config(GIVEN, overlay)
    update_config(GIVEN, workflow.config_settings.config)
