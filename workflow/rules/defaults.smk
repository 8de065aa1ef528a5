"""Default config for a workflow that uses this one as a module: config.yaml, resources.yaml, paths of the weights."""

import os

defaults = load_configfile(f"{HERE}/config.yaml")
update_config(defaults, load_configfile(f"{HERE}/workflow/resources.yaml"))
for settings in defaults.values():
    if isinstance(settings, dict) and str(settings.get("checkpoint")).startswith("models/"):
        settings["checkpoint"] = os.path.relpath(f"{HERE}/{settings['checkpoint']}")
update_config(defaults, config)
config.update(defaults)
