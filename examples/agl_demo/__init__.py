"""A two-agent shop assistant, its tiny chat model, and the world both live in.

Read in this order: ``agent.py`` (the program to be trained, which imports nothing of agl-core),
``world.py`` (tasks and scorer), ``make_model.py`` (how the shipped model was made).
"""
