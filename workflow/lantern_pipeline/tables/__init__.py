"""From measurements to tables, comparisons and claims."""
