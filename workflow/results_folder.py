"""Print the folder results/<experiment> into which a Snakemake command would write, given its arguments.

`make` runs this script before it starts Snakemake with these arguments. It prints an empty line for a dry run.
"""

import sys
from pathlib import Path

from snakemake.cli import parse_args, parse_config
from snakemake.common.configfile import load_configfile
from snakemake.exceptions import CliException
from snakemake.utils import update_config

from lantern_pipeline.plan.validate import check_config_files


def find_results(arguments: list[str]) -> Path | None:
    """Return the folder, or None for a dry run and for a name that Snakemake will refuse.

    Raises:
        ValueError: a config file does not exist or is not valid YAML.
        CliException: `--config` is not of the form name=value.
    """
    # Snakemake's own parser, which also reads the profiles that the arguments name.
    _, options = parse_args(["--workflow-profile", "none", *arguments])
    files = [Path("config.yaml"), *options.configfile]
    for file in files:
        if not file.exists():
            raise ValueError(f"ARGS names {file}, which does not exist: check its spelling and folder")
    check_config_files(files)
    config: dict = {}
    # in Snakemake's order: later values win
    for overlay in (*map(load_configfile, files), parse_config(options.config)):
        update_config(config, overlay)
    name = str(config["experiment"])
    # The config's checks refuse a name such as "../other".
    return None if options.dryrun or Path(name).name != name else Path(options.directory or "", "results", name)


if __name__ == "__main__":
    try:
        print(find_results(sys.argv[1:]) or "")
    except (ValueError, CliException) as error:
        sys.exit(str(error))
