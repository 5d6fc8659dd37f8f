"""The tuner of a run's prompts: learns captured prompts, and runs the phases of optimisers.

Reading order: `_tuner` (the tuner), `_learning` (captured prompts), `_phase` (what an optimiser
gets), `_runs` (rollouts, which a resumed phase finds in the store), `_outcomes` (their scores).
"""
