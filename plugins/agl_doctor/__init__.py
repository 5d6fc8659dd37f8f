"""``agl doctor``: runs a few tasks before training and reports what is wrong.

Reading order: `command`, `diagnose` (the whole), `evidence` (what the attempts recorded), `calls` (the
agent of each call), then one module per subject: `backends`, `agents`, `rewards`,
`lengths`, `prefixes`, `tools`, `attempts` with `requests`, and `checks` for the checks of plugins.
"""
