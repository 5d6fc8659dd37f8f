"""Tasks from files and objects, and named sets with the reward that scores them.

``math``, ``coding``, ``reasoning`` and ``sql-generation`` are generated here, the same in every run;
``gsm8k`` is read by the package ``datasets``. Every row states its set in ``metadata["set"]``, by
which the reward ``task_set`` compares the answer. Reading order: `_objects` and `_files` (the
readers), `_rows`, a module for each set, `_reward`.
"""
