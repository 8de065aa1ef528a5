"""The frame of a job: log, locks, machine, environment, code fingerprint."""
