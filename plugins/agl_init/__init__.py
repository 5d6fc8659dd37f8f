"""``agl init``: writes the files that a working program needs for training.

Reading order: `_program` (what the source says, without running it), `_frameworks` (its integrations), `_files` (what is written), `command`.
"""
