"""A two-agent shop assistant, its tiny chat model, and its tasks.

Read in this order: ``agent.py`` (the agent program, which does not import agl-core), ``world.py``
(tasks and scorer), ``make_model.py`` (creates the shipped model).
"""
