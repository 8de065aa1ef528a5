"""Config keys that the user gives: files with --configfile, --config, or the config of a module.

They are read before the defaults.
"""

import os
import sys
from copy import deepcopy
from pathlib import Path

from snakemake.common.configfile import load_configfile
from snakemake.utils import update_config

# Import the packages of this folder, even if they are installed elsewhere.
sys.path[:0] = [HERE, f"{HERE}/workflow"]

from lantern_pipeline.plan.validate import load_yaml, read_texts


def read_config(path):
    """Return the values of a config file. Numbers such as 1e-3 are text for Snakemake's own reader of YAML."""
    values = load_configfile(path)
    if Path(path).suffix == ".json" or "__use_yte__" in Path(path).read_text(encoding="utf-8"):
        return values
    try:
        return load_yaml(path)
    except ValueError as error:
        sys.exit(str(error))


if workflow.modifier.skip_configfile:  # this workflow is a module with a config
    GIVEN = deepcopy(config)
else:
    GIVEN, defaults = {}, read_config(f"{HERE}/config.yaml")
    for overlay in map(read_config, workflow.overwrite_configfiles):
        if overlay != defaults:  # the user may pass config.yaml itself with --configfile
            update_config(GIVEN, overlay)
    # A text at the top, such as a name, stays as it is.
    update_config(
        GIVEN, {k: v if isinstance(v, str) else read_texts(v) for k, v in workflow.config_settings.config.items()}
    )
