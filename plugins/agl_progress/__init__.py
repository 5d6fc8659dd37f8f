"""The progress display of runs: a panel on a terminal, lines of text in pipes, files and notebooks.

`_display` shows a run, `plugin` registers it as ``progress``; `_notebook` shows its report.
"""
