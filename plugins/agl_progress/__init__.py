"""The progress display of runs: a panel on a terminal, lines of text in pipes, files and notebooks.

`display` shows a run, `plugin` registers it as ``progress``.
"""
