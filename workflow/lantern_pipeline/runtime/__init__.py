"""What a job runs in: log, locks, machine, environment, code fingerprint."""
