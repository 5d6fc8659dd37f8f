"""Training: the loop that runs rollouts and updates weights from ended attempts.

Reading order: `loop` (the training loop), `rollouts` (tasks and rollouts of a step), `groups` (the
groups for baselines), `advantages` and `algorithms` (credit), `batcher` (the engine's batches),
`evaluate` (scores on held-out tasks), `checkpoint` (saved weights and state).
"""
