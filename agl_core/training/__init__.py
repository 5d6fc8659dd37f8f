"""Training: from ended attempts to new weights.

Reading order: `loop` (the whole of it), `sampler` and `rollouts` (what runs), `groups` (what a
baseline is taken over), `advantages` and `algorithms` (what was good), `batcher` (what an engine
gets), `evaluate` and `evaluator` (how good it became), `checkpoint` (what is kept).
"""
