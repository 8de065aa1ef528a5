"""Tables of results, comparisons of methods, and *claims*: the facts that README states, computed from the tables."""
