"""Checkpoints, reports, prompts and exports of runs in object storage, and tasks from there.

`_options` has the section ``[storage]``, `_manifest` and `_remote` the form of what is stored,
`_mirror` the thread that uploads, `_resume` the choice of the checkpoint to continue from,
`_observer` the link to the run, `_tasks` the readers of tasks and `_commands` ``agl storage``.
"""
