"""Durable record of a run: rollouts, fenced attempts, their spans, published resources.

`_transitions` says what may follow what, `_operations` are the store's methods over any medium,
`base` waits and wakes. A medium is dictionaries (`memory`) or one file (`sqlite`).
"""
