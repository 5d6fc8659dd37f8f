"""Learning by imitation: the algorithms ``sft`` and ``rft``, both on the loss ``cross_entropy``.

Reading order: `_rft` (the best attempts of each group).
"""
