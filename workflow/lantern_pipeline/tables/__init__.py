"""Tables of results, comparisons of methods, and *claims*: the numbers behind the conclusions that README states."""
