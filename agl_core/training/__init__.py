"""From ended attempts to updates: groups, advantages, batches, the loop, evaluation, checkpoints.

Each module is imported by its name; `agl_core.app` wires them.
"""
