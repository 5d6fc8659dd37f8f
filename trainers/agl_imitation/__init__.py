"""Learning by imitation: the algorithms ``sft`` and ``rft``, both on the loss ``cross_entropy``.

Reading order: `_rft` (the best attempts of each group), `_sft` (given conversations), with
`_conversations` (files), `_stored` (runs), `_filtering`, `_rendering` (exact tokens) and `_credit` (weights).
"""
