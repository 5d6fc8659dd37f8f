"""One file per command; `_selection` and `_tree` are shared."""
