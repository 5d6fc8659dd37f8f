"""Commands that use what a run has learned: `agl eval`, `agl export` and `agl serve`.

Reading order: `_prompts` (the prompts of a version or checkpoint), `_eval`, `_export`, `_serve` and
`_agents` (the requests of agents, with their tuned prompts).
"""
