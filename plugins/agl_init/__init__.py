"""``agl init``: the files that a program that already works needs to be trained.

Reading order: `_program` (what the source says, without running it), `_frameworks` (which
integration it concerns), `_files` (what is written), `command`.
"""
