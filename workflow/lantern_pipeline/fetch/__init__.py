"""Files that a run uses but does not make: config entries, download, and checks when a job reads them."""
