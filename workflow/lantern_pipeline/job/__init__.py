"""Functions around a job: log, locks, description of the machine, environment variables, hash of the code."""
