"""Token-level F1 of an answer, after the normalisation of SQuAD."""

from __future__ import annotations

import unicodedata
from collections import Counter

ARTICLES = frozenset(("a", "an", "the"))


def tokens(text: str) -> list[str]:
    """Return the words of a text: lower case, without punctuation and articles."""
    kept = "".join(each for each in text.casefold() if unicodedata.category(each)[0] != "P")
    return [word for word in kept.split() if word not in ARTICLES]


def f1(answer: str, gold: str) -> float:
    """Return the harmonic mean of precision and recall over words, each as often as it occurs.

    Where the answer or the gold answer has no words, 1.0 if neither has any, else 0.0.
    """
    given, right = tokens(answer), tokens(gold)
    if not given or not right:
        return float(given == right)
    shared = sum((Counter(given) & Counter(right)).values())
    return 2 * shared / (len(given) + len(right))
