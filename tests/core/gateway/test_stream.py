from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_core.gateway._stream import Event, EventParser, render

# Every oddity that servers were seen to send.
WILD = (
    "\ufeff: OPENROUTER PROCESSING\n\n"
    'data:{"a": 1}\r\n\r\n'
    'data: {"b":\ndata: 2}\n\n'
    "event: error\rdata: x\r\r"
    ": ping\n\n"
    "id: 7\nretry: 10\ndata: 你好 👋\n\n"
    "data\n\n"
    "data:  two spaces\n\n"
    "\n\n"
    "data: [DONE]"
).encode()
EXPECTED = [
    Event(b'{"a": 1}'),
    Event(b'{"b":\n2}'),
    Event(b"x", b"error"),
    Event("你好 👋".encode()),
    Event(b""),
    Event(b" two spaces"),
    Event(b"[DONE]"),
]


def parse(pieces: list[bytes]) -> list[Event]:
    parser = EventParser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return [*found, *parser.finish()]


def test_every_single_cut_gives_the_same_events() -> None:
    assert parse([WILD]) == EXPECTED
    for at in range(len(WILD) + 1):
        assert parse([WILD[:at], WILD[at:]]) == EXPECTED
    assert parse([WILD[k : k + 1] for k in range(len(WILD))]) == EXPECTED


@given(cuts=st.sets(st.integers(0, len(WILD))))
def test_any_set_of_cuts_gives_the_same_events(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(WILD)]
    assert parse([WILD[a:b] for a, b in pairwise(edges)]) == EXPECTED


@given(
    datas=st.lists(st.text(min_size=1).map(lambda t: t.replace("\r", "")), max_size=5),
    size=st.integers(1, 7),
)
def test_rendered_events_are_parsed_back(datas: list[str], size: int) -> None:
    wanted = [data.encode() for data in datas]
    wire = b"".join(render(data) for data in wanted)
    found = parse([wire[k : k + size] for k in range(0, len(wire), size)])
    assert [event.data for event in found] == wanted


def test_events_come_as_soon_as_they_are_whole() -> None:
    parser = EventParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\n") == [Event(b"1")]
    assert parser.feed(b"data: 2\r\n\r") == [Event(b"2")]
    assert parser.feed(b"\ndata: 3\n\n") == [Event(b"3")]
    assert parser.finish() == []


@pytest.mark.parametrize("tail", [b"data: last", b"data: last\n", b"data: last\r"])
def test_last_event_needs_no_blank_line(tail: bytes) -> None:
    assert parse([tail]) == [Event(b"last")]


@pytest.mark.parametrize("tail", [b"da", b": pi", b"event: erro", b"event: error\n", b"id: 7\r"])
def test_what_is_cut_off_does_not_join_what_follows(tail: bytes) -> None:
    """A2: an event that is sent after the raw bytes of a cut line is read as it is."""
    parser = EventParser(keep_raw=True)
    (first,) = parser.feed(b"data: 1\n\n" + tail)
    sent = first.raw + parser.idle()
    assert parser.finish() == []
    sent += parser.idle()
    assert sent.startswith(b"data: 1\n\n" + tail)
    assert parse([sent, render(b"2")]) == [Event(b"1"), Event(b"2")]
