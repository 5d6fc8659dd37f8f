"""A search finds the same with an index and without one, also inside runs of letters without spaces."""

import asyncio
import sqlite3

from agl_reading import IndexedReading, RowFilter, RowQuery, ScanReading, holds, indexed, phrases
from agl_testing import _store_samples as sample
from hypothesis import given, settings
from hypothesis import strategies as st

from agl_core.store import MemoryStore
from agl_core.types import Reward, SpanKind

JOINED = st.sampled_from(
    [(0x4E00, 0x9FFF), (0x3041, 0x3096), (0x30A1, 0x30FA), (0xAC00, 0xD7A3), (0xE01, 0xE3A)]
).flatmap(lambda bounds: st.characters(min_codepoint=bounds[0], max_codepoint=bounds[1]))
RUN = st.text(JOINED, min_size=2, max_size=30)
OTHER = st.text(st.sampled_from(" ,。\n_aAZß9é\u0301高太の가ก\ud800ΣσİÅ"), max_size=30)


@st.composite
def parts(draw):
    """A text, and two or more letters in a row of a run in it."""
    run = draw(RUN)
    start = draw(st.integers(0, len(run) - 2))
    end = draw(st.integers(start + 2, len(run)))
    return draw(OTHER) + run + draw(OTHER), run[start:end]


@given(parts())
def test_any_letters_in_a_row_are_found(drawn):
    text, part = drawn
    assert holds(indexed(text), phrases(part))


@given(st.text(JOINED, min_size=1, max_size=12), st.text(JOINED, min_size=1, max_size=4))
def test_letters_that_are_not_in_a_row_are_not_found(run, part):
    assert holds(indexed(run), phrases(part)) == (part in run)


@given(st.text(), st.text(max_size=5))
def test_the_beginning_of_a_word_is_found_in_any_script(text, more):
    for word in (text + more).split():
        for end in range(1, min(len(word), 6)):
            asked = phrases(word[:end])
            assert holds(indexed(text + more), asked), (word, end)


@settings(max_examples=40, deadline=None)
@given(drawn=parts(), other=OTHER, asked=OTHER)
def test_an_index_finds_what_a_scan_finds(tmp_path_factory, drawn, other, asked):
    text, part = drawn
    folder = tmp_path_factory.mktemp("index")
    texts = [text, f"{other}{text}", other]
    found = asyncio.run(searched(texts, [part, asked, other[:3], text[-5:]], folder / "index.db"))
    assert {0, 1} <= set(found[0][0])
    for scanned, read in found:
        assert scanned == read


async def searched(texts, asked, path):
    """Return, for each search, the places of the texts that a scan and an index find."""
    store = MemoryStore()
    await store.open()
    for at, text in enumerate(texts):
        claim = await sample.begin(store, step=at, task=sample.Task(id=str(at), input=""))
        why = Reward(value=1.0, why=text)
        span = sample.span(claim, kind=SpanKind.REWARD, name="reward", reward=why)
        await sample.succeed(store, claim, [span])
    index = IndexedReading(store, path)
    await index.open()
    while await index.refresh():
        pass
    found = []
    for each in asked:
        wanted = RowFilter(text=each)
        rows = [
            await reading.rows(RowQuery(wanted=wanted)) for reading in (ScanReading(store), index)
        ]
        found.append(tuple([row.step for row in reversed(own)] for own in rows))
    await index.close()
    await store.close()
    return found


async def test_an_index_of_the_older_form_is_built_anew(tmp_path):
    store = MemoryStore()
    await store.open()
    claim = await sample.begin(store, task=sample.Task(id="价格太高", input=""))
    await sample.succeed(store, claim, [])
    for opened in range(2):
        index = IndexedReading(store, tmp_path / "index.db")
        await index.open()
        while await index.refresh():
            pass
        assert len(await index.rows(RowQuery(wanted=RowFilter(text="格太")))) == 1
        await index.close()
        if not opened:
            make_old(tmp_path / "index.db")
    await store.close()


def make_old(path):
    """Give an index the words and the version of the form before."""
    with sqlite3.connect(path) as sql:
        sql.execute("DROP TABLE texts")
        tokens = "unicode61 remove_diacritics 0"
        sql.execute(
            f"CREATE VIRTUAL TABLE texts USING fts5 (text, content = '', tokenize = '{tokens}')"
        )
        sql.execute("INSERT INTO texts (rowid, text) SELECT number, '价格太高' FROM rows")
        sql.execute("PRAGMA user_version = 2")
    sql.close()
