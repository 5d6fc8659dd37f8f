"""Personal data that tests plant, and what looks for it."""

from collections.abc import Iterable
from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _letters(number: int) -> str:
    return LETTERS[number // 26] + LETTERS[number % 26]


MAILS = [f"person.{_letters(n)}@mail{n}.example.org" for n in range(50)]
PHONES = [f"+49 170 12345{n:02d}" for n in range(50)]
ADDRESSES = [f"203.0.{100 + n}.{n + 7}" for n in range(50)]
NAMES = [f"Vorn{_letters(n)} Nachn{_letters(n)}" for n in range(50)]
POSTAL = [f"Testweg {n + 1}, {10100 + n} Ort{_letters(n)}" for n in range(50)]
ITEMS = [*MAILS, *PHONES, *ADDRESSES, *NAMES, *POSTAL]
"""250 items."""
SECTION = {"names": NAMES}


def five(number: int) -> str:
    """Return a text with one item of each kind; 50 texts have all."""
    at = number % 50
    return f"Ask {NAMES[at]} ({MAILS[at]}, {PHONES[at]}) at {ADDRESSES[at]} or {POSTAL[at]}"


def found_in(text: str | bytes, items: Iterable[str] = ITEMS) -> list[str]:
    """Return the items that stand in a text."""
    if isinstance(text, bytes):
        return [item for item in items if item.encode() in text]
    return [item for item in items if item in text]


def found_below(directory: Path, items: Iterable[str] = ITEMS) -> dict[str, list[str]]:
    """Return the items in every file of a directory; the configuration of a run names names."""
    listed = [*items]
    found = {
        path.name: found_in(path.read_bytes(), listed)
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith("config")
    }
    return {name: items for name, items in found.items() if items}
