"""Files that a run uses but does not make, such as published weights: config entries, download and checks."""
