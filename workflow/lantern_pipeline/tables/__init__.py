"""Tables, comparisons and claims, computed from measurements."""
