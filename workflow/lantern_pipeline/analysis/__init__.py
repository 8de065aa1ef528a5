"""From measurements to tables, comparisons and findings."""
