"""The page on the doctor names every finding, and nothing that is none."""

import re
from pathlib import Path

from agl_core.types.run import MEANING

ROOT = Path(__file__).parents[3]
CHECK = re.compile(
    r'(?:check=|Finding\.of\(\s*|check = |^    (?="[a-z_]+\.[a-z_]+": \())"([a-z_.]+)"',
    re.MULTILINE,
)
FOLDERS = ("plugins/agl_doctor", "integrations", "trainers/agl_prompts")


def test_every_finding_and_cause_is_on_the_page() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row.split("|")[1])}
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    named = {name for file in files for name in CHECK.findall(file.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert told == named | MEANING.keys()
