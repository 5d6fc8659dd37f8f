"""Named sets of tasks for ``tasks.train`` and ``tasks.val``, and the reward that scores them.

``math``, ``coding``, ``reasoning`` and ``sql-generation`` are generated here, the same in every run;
``gsm8k`` is read by the package ``datasets``. Every row states its set in ``metadata["set"]``, by
which the reward ``task_set`` compares the answer. Reading order: `_rows`, a module for each set,
`_reward`.
"""
