"""``agl doctor``: runs a few tasks before training and reports problems.

Reading order: `_command`, `_diagnose` (the whole check), `_trial` (running tasks), `_evidence`
(records of the attempts), `_calls` (the agent of each call), then one module per subject:
`_backends`, `_agents`, `_rewards`, `_lengths`, `_prefixes` with `_continuity`, `_tools`,
`_attempts` with `_requests`, and `_checks`, which runs the checks of plugins. Every training run
counts the breaks that `_continuity` finds.
"""
