"""How the pages of the site are made of the files of the repository."""

import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tools import draw, pages, terminal

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("face", pages.FACES)
def test_every_face_has_public_names(face):
    assert pages.names_of(face)


def test_the_changelog_is_rendered():
    pytest.importorskip("towncrier")
    made = pages.changelog()
    assert made.startswith("# Changes\n")
    assert "agl-core next" in made


def test_the_diagrams_are_those_that_the_script_draws():
    made = draw.pictures()
    assert {name: (ROOT / "docs" / "images" / name).read_text("utf-8") for name in made} == made


@pytest.mark.parametrize("image", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=str)
def test_a_picture_loads_nothing_and_has_no_script(image):
    root = ET.fromstring(image.read_text("utf-8"))
    assert not [each for each in root.iter() if each.tag.endswith(("script", "foreignObject"))]
    assert not re.search(r"url\(['\"]?(?!#)", ET.tostring(root, "unicode"))


def test_the_citation_names_the_version_and_the_licence_of_the_project():
    cited = YAML(typ="safe", pure=True).load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {name: cited[name] for name in ("version", "license")} == {
        name: project[name] for name in ("version", "license")
    }
    assert cited["cff-version"] == "1.2.0"


def test_the_terminal_is_drawn_from_what_the_demo_prints():
    printed = (
        "run demo: 20 steps\n"
        "step 1/20  reward 0.219  tokens/s 140  rollouts 64  eta 0:02:04\n"
        "step 2/20  reward 0.547  tokens/s 137  rollouts 64  eta 0:01:50\n"
        "step 20/20  reward 0.906  tokens/s 83  rollouts 64  eta 0:00:00\n"
        "before: What?\n   writer: <b>\nafter: What?\n   writer: 83 pounds.\n"
        "writer before  0.295  [0.236, 0.362]  of 200 tasks\nWall time 129 s\n"
    )
    lines = [*terminal.shown(printed)]
    assert [line for line in lines if line] == [
        "$ agl demo",
        "step 1/20  reward 0.219",
        "step 20/20  reward 0.906",
        "before: What?",
        "   writer: <b>",
        "after: What?",
        "   writer: 83 pounds.",
        "writer before  0.295  [0.236, 0.362]  of 200 tasks",
    ]
    drawn = ET.fromstring(terminal.picture(lines))
    assert "0.219" in "".join(drawn.itertext())
