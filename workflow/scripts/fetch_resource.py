"""Download the files of one resource, or check the user's copy, and write its manifest.

No other script may use the network.
"""

from lantern.io import write_json
from lantern_pipeline.fetch.entries import parse_entry
from lantern_pipeline.fetch.fetch import fetch_resource
from lantern_pipeline.job.context import job_log
from lantern_pipeline.schema.run_config import ResourceEntry

with job_log(snakemake) as log:
    manifest = fetch_resource(parse_entry(snakemake.wildcards.resource, ResourceEntry(**snakemake.params.entry)))
    write_json(snakemake.output[0], manifest)
    log.info("%s: %s, sha256 %s", manifest["path"], manifest["source"], manifest["sha256"])
