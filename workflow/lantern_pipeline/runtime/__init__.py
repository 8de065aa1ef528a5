"""Functions around the code of a job: log, locks, description of the machine, environment, hash of the code."""
