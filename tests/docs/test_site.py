"""The site that `mkdocs build --strict` made; the environment `docs` of tox names it in AGL_SITE."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tools import pages

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("AGL_SITE", "none"))
FOREIGN = re.compile(r"^(?:\w+:)?//")
LOADS = {
    ("script", "src"),
    ("img", "src"),
    ("img", "srcset"),
    ("iframe", "src"),
    ("source", "src"),
    ("source", "srcset"),
    ("video", "src"),
    ("object", "data"),
    ("use", "href"),
    ("image", "href"),
}

built = pytest.mark.skipif(not SITE.is_dir(), reason="only in `tox -e docs`, which builds the site")


class Loaded(HTMLParser):
    """The addresses that a browser loads with a page, other than those that a reader follows."""

    def __init__(self, page):
        super().__init__()
        self.found, self.ids = [], set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids.add(values.get("id"))
        self.found += [value for name, value in attributes if (tag, name) in LOADS]
        relation = (values.get("rel") or "").split()
        if tag == "link" and not {"canonical", "prev", "next"} & {*relation}:
            self.found.append(values["href"])


@built
def test_nothing_is_loaded_from_another_host():
    checked = 0
    for file in SITE.rglob("*.html"):
        page = file.read_text(encoding="utf-8")
        loaded = Loaded(page).found
        loaded += re.findall(
            r"url\(['\"]?([^'\")]+)", "".join(re.findall(r"<style.*?</style>", page))
        )
        assert [address for address in loaded if FOREIGN.match(address or "")] == [], file
        # The theme fetches a diagram library or the facts of a repository for these alone.
        assert 'class="mermaid"' not in page
        assert 'data-md-component="source"' not in page
        checked += len(loaded)
    for file in SITE.rglob("*.css"):
        style = file.read_text(encoding="utf-8")
        loaded = re.findall(r"url\(['\"]?([^'\")]+)|@import ['\"]([^'\"]+)", style)
        assert [each for each in loaded if FOREIGN.match("".join(each))] == [], file
    assert checked


@built
@pytest.mark.parametrize("face", pages.FACES)
def test_every_public_name_stands_in_the_reference(face):
    page = (SITE / "api" / f"{face}.html").read_text(encoding="utf-8")
    ids = Loaded(page).ids
    assert [name for name in pages.names_of(face) if f"{face}.{name}" not in ids] == []


@built
def test_the_search_finds_what_pages_and_docstrings_say():
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {each["location"].partition("#")[0] for each in index["docs"]}
    assert {"tutorial.html", "concepts.html", "cli.html", "api/agl_core.html"} <= places
    assert any("max_staleness" in each["text"] for each in index["docs"])


def test_every_public_name_is_documented():
    griffe = pytest.importorskip("griffe")
    loader = griffe.GriffeLoader(search_paths=[str(ROOT / root) for root in pages.SOURCES])
    for package in {face.partition(".")[0] for face in pages.FACES}:
        loader.load(package)
    loader.resolve_aliases(external=False)
    missing = []
    for name in (f"{face}.{name}" for face in pages.FACES for name in pages.names_of(face)):
        found = loader.modules_collection[name]
        found = found.final_target if found.is_alias else found
        if not found.docstring:
            missing.append(f"{name} ({found.relative_filepath}:{found.lineno})")
    assert missing == [], "write a docstring, or a string below the constant"
