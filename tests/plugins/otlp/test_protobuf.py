"""The binary form says the same as the JSON form, and broken bytes are told apart."""

from __future__ import annotations

import struct

import pytest
from agl_otlp._decode import Sender, decode
from agl_otlp._protobuf import answer, read_request
from agl_otlp._values import Malformed, any_value, plain
from hypothesis import given
from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
NAMES = TEXT.filter(lambda name: not name.startswith(("agl.", "gen_ai.")))
"""Of attributes that are nothing more than that."""
LEAVES = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary(max_size=20)
    | st.none()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)

FROM_AN_SDK = bytes.fromhex(
    "0aee020a180a160a0c736572766963652e6e616d6512060a0473686f7012d1020a0d0a0b73686f702e747261"
    "63657212a7010a1008e5c5f28f2364404eb10a18f6bba5a6120801b06df6bc77b6b82208447bbb9c2a82fed8"
    "2a13657865637574655f746f6f6c206c6f6f6b75703001398f2bd731fd19ec18413e13d831fd19ec184a270a"
    "1567656e5f61692e6f7065726174696f6e2e6e616d65120e0a0c657865637574655f746f6f6c4a0f0a016e12"
    "0a2a080a0218010a0218024a0e0a0166120921000000000000e03f7a0612026e6f1802850100010000129501"
    "0a1008e5c5f28f2364404eb10a18f6bba5a61208447bbb9c2a82fed82a13696e766f6b655f6167656e742077"
    "72697465723001398d30d231fd19ec1841f302d931fd19ec184a270a1567656e5f61692e6f7065726174696f"
    "6e2e6e616d65120e0a0c696e766f6b655f6167656e744a1d0a1167656e5f61692e6167656e742e6e616d6512"
    "080a067772697465727a00850100010000"
)
"""What opentelemetry-exporter-otlp-proto-http 1.45 sends for an agent and the tool that it runs."""


def varint(number):
    number &= 2**64 - 1
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def block(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def written(value):  # noqa: PLR0911 - one per type
    """A typed value as an encoder of the schema writes it."""
    if isinstance(value, bool):
        return varint(2 << 3) + varint(value)
    if isinstance(value, int):
        return varint(3 << 3) + varint(value)
    if isinstance(value, float):
        return varint(4 << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, str):
        return block(1, value.encode())
    if isinstance(value, bytes):
        return block(7, value)
    if isinstance(value, list):
        return block(5, b"".join(block(1, written(item)) for item in value))
    if isinstance(value, dict):
        return block(6, b"".join(block(1, pair(*item)) for item in value.items()))
    return b""


def pair(name, value):
    return block(1, name.encode()) + block(2, written(value))


def span(*, number=1, name="work", attributes=(), more=b""):
    head = block(1, bytes(15) + b"\x01") + block(2, number.to_bytes(8, "big"))
    times = b"".join(
        varint(n << 3 | 1) + struct.pack("<Q", at) for n, at in ((7, 5), (8, 2**63 + 1))
    )
    given = b"".join(block(9, pair(*item)) for item in dict(attributes).items())
    return head + block(5, name.encode()) + times + given + more


def body(*spans):
    return block(1, block(2, b"".join(block(2, one) for one in spans)))


@given(attributes=st.dictionaries(NAMES, VALUES, max_size=4))
def test_attributes_say_the_same_in_both_forms(attributes):
    (found,) = decode(
        read_request(body(span(attributes=attributes))),
        sender=Sender(rollout_id="r", attempt_id="a"),
    ).spans

    assert {name: found.attributes[name] for name in attributes} == attributes
    as_json = {name: plain(any_value(value), where="") for name, value in attributes.items()}
    assert as_json == attributes
    assert (found.start_ns, found.end_ns) == (5, 2**63 + 1)


def test_what_an_sdk_sends_is_understood():
    request = read_request(FROM_AN_SDK)

    tool, agent = decode(request, sender=Sender(rollout_id="r", attempt_id="a")).spans

    assert (agent.kind, agent.agent, agent.name) == ("agent", "writer", "invoke_agent writer")
    assert (tool.kind, tool.agent, tool.parent_id) == ("tool", "writer", agent.id)
    assert (tool.status, tool.error) == ("error", "no")
    assert (tool.attributes["n"], tool.attributes["f"]) == ([1, 2], 0.5)
    assert tool.attributes["service.name"] == "shop"


def test_fields_that_are_not_known_are_skipped():
    unknown = (
        varint(99 << 3)
        + varint(2**40)
        + varint(98 << 3 | 5)
        + b"abcd"
        + block(97, b"x")
        + varint(96 << 3 | 1)
        + bytes(8)
    )

    (found,) = decode(
        read_request(body(span(more=unknown))), sender=Sender(rollout_id="r", attempt_id="a")
    ).spans

    assert found.name == "work"


PLACES = [bytes, body, lambda data: body(span(more=data)), lambda data: body(span(), data)]
"""Where in a request it may be that bytes are none of the schema."""


@given(data=st.binary(max_size=60), place=st.sampled_from(PLACES))
def test_any_bytes_are_read_or_refused(data, place):
    """Nothing but `Malformed` is raised, and no span is lost without a word."""
    try:
        found = decode(read_request(place(data)), sender=Sender(rollout_id="r", attempt_id="a"))
    except Malformed:
        return
    owned = len({*found.sources})
    assert owned + len(found.refused) == found.received


@given(cut=st.integers(1, 200))
def test_a_request_that_was_cut_off_is_never_taken_for_whole(cut):
    whole = body(span(attributes={"k": "v" * 200}))
    if cut < len(whole):
        with pytest.raises(Malformed):
            read_request(whole[:-cut])


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x0b",
        b"\x0a\xff",
        b"\xff" * 11,
        varint(1 << 3) + b"\x01",
        body(span(more=block(5, b"\xff\xfe"))),
    ],
)
def test_what_is_no_request_is_refused(wrong):
    with pytest.raises(Malformed):
        read_request(wrong)


def test_a_value_that_is_nested_without_end_is_refused():
    value: bytes = block(1, b"x")
    for _ in range(80):
        value = block(5, block(1, value))
    with pytest.raises(Malformed, match="nested deeper"):
        read_request(body(span(more=block(9, block(1, b"k") + block(2, value)))))


def test_answers_tell_how_many_were_refused():
    assert answer(refused=0, reason="") == b""
    assert answer(refused=300, reason="no") == b"\x0a\x07\x08\xac\x02\x12\x02no"
