"""``agl doctor``: runs a few tasks before training and reports problems.

Reading order: `command`, `diagnose` (the whole check), `evidence` (records of the attempts),
`calls` (the agent of each call), then one module per subject: `backends`, `agents`, `rewards`,
`lengths`, `prefixes`, `tools`, `attempts` with `requests`, and `checks`, which runs the checks of
plugins.
"""
