"""``agl init``: writes the files that a working program needs for training.

Reading order: `_program` (reads the source without running it), `_frameworks` (finds its
integrations), `_files` (the text of the files), `_command`.
"""
