"""Fetching of files that a run uses but does not make: `entries` of the config, `fetch` to download, `manifest`."""
