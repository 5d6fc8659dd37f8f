"""One file per command; `selection` and `tree` are shared."""
