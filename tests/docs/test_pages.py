"""How the pages of the site are made of the files of the repository."""

import re
from pathlib import Path

import pytest

from tools import pages

ROOT = Path(__file__).parents[2]
NAV = re.findall(r": (\S+\.md)$|- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_links_lead_to_pages_of_the_site_or_to_the_repository():
    here = ROOT / "docs" / "train.md"
    known = {
        here: "train.md",
        ROOT / "README.md": "index.md",
        ROOT / "examples" / "10_images" / "README.md": "examples/10_images.md",
    }
    text = (
        "[a](../README.md#use-it) [b](../examples/10_images/README.md) [c](#here) [d](mailto:x)\n"
        "![e](images/loop.svg#only-dark) [f](../agl_core/faces.py)\n"
        "```\n[g](../README.md)\n```\n"
    )
    assert pages.rewritten(text, here, known) == (
        "[a](index.md#use-it) [b](examples/10_images.md) [c](#here) [d](mailto:x)\n"
        f"![e](images/loop.svg#only-dark) [f]({pages.REPOSITORY}/agl_core/faces.py)\n"
        "```\n[g](../README.md)\n```\n"
    )


def test_links_of_a_page_in_a_folder_climb_to_the_root():
    here = ROOT / "examples" / "10_images" / "README.md"
    known = {here: "examples/10_images.md", ROOT / "docs" / "verl.md": "verl.md"}
    assert pages.rewritten("[a](../../docs/verl.md)", here, known) == "[a](../verl.md)"


def test_every_page_is_in_the_navigation_once():
    listed = [one or other for one, other in NAV]
    made = {*pages.sources().values(), "changelog.md", "api/index.md"}
    made |= {f"api/{face}.md" for face in pages.FACES}
    assert sorted(listed) == sorted(made), "mkdocs.yml lists the pages under `nav`"


@pytest.mark.parametrize("face", pages.FACES)
def test_every_face_has_public_names(face):
    assert pages.names_of(face)


def test_the_changelog_is_rendered():
    pytest.importorskip("towncrier")
    made = pages.changelog()
    assert made.startswith("# Changes\n")
    assert "agl-core next" in made
