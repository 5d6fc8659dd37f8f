"""One file per command; `_selection`, `_output` and `_tree` are shared."""
