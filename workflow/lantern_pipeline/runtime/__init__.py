"""Functions that all jobs use: log, locks, description of the machine, environment variables, hash of the code."""
