"""What ``agl doctor`` does: a few real tasks before any training, and what they show.

Reading order: `command`, `diagnose` (the whole), `evidence` (what the attempts left), `calls` (whose
each call is), then one module per thing that is looked at: `backends`, `agents`, `rewards`,
`lengths`, `prefixes`, `tools`, `attempts` with `requests`, and `checks` for what plugins offer.
"""
