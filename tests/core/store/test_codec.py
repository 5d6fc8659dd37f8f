from __future__ import annotations

import struct
import zlib
from array import array
from base64 import b85decode
from fractions import Fraction
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from agl_core.errors import StoreError
from agl_core.store import _codec
from agl_core.store._codec import (
    ROLLOUTS,
    SPANS,
    Codec,
    detached,
    encode,
    encode_span,
    json_value,
)
from agl_core.types import (
    Choice,
    ModelCall,
    Reward,
    Sampling,
    Span,
    SpanKind,
    Task,
    pack_floats,
    pack_ints,
)

TEXT = st.text(st.characters(), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


OLD = (
    b"c-pN}J&qGG6rRvfa{$Bz_6}Tu78=W$c}cAGJP&>zlC4-OB&t!if@-qNB$H&bqTPy7Xppk(5%vs7G<4zFLxL#iaAU"
    b"t8`}_R9?>>5TsgfD3tkK%!PH<pX(m6=85XkCOVe(Pyv_hG}440X-fWFq&a>%FlDr~~$=#ve>%N#I<s39k<6G+h<F"
    b"bO+nTuyb41g-{ajV(QxRsGxnoiAdkwMUIBf4Ywzdvfu=$#o27<G(1BwbV*d*`z?k1uAN1jHaR?nPyty@a@_^0hY;"
    b"F*ggFog~eT&$d2JEl@sC2DIm2o>{SGiv=wnvQNzSpdHyN0#xn^`3{2C9-+CvDcw|%zG<{d|<X{plkM)b_E_(3n#o"
    b"g=ue&1*_<okWP*nPfv@7IUjn;M^NfBtwLRgMuZM`~$7l0l|iuKXW_9}5+mL5{Ig21DE~EDUmznm?W=%9NXdLPaCd"
    b"U2cE#=>6eQ9Knl#RQ?y7&EZjzngl8|2x|+J8CE;U;?ugEXGW{|ti0}a@d_+4M6^~Zi`5OYUGjVt%D#p#Y$FCpA=x"
    b"%Dk6VL-?Uh6tgBATVwhaqs6;N+QIcrLgaO=8rnur<l_UplF!H^KFcs)>-4$`s04O_IUY}`m8n|>&q9MZH7VRJ~%E"
    b"sUj2+Fx$ibgl"
)
"""A span as it was written when ids and log-probabilities were lists: base 85, zlib."""
OLD_ESCAPED = (
    b"c-pN}y^hmB5O$!T<^d2dKyf7n60bnZ32C*lC(i2DyJluhaur8~L}leFs2s2pC%K$xsjxzGQs5rpo&kx5F3j2_h=P"
    b"u7cIRjJ`*yzX>h`1FO>p<Uil($gtF_IX-~gA>IY`nrkmZRo(Fd)Q(#Qm+W|2w+<7-VNV?H$(?ItiYK3Nky&%lHb)"
    b"Z`>OVJMh^iQ1hrE~6?l1g-)^i-iY6)z2Kz**uh5d(^P>r<>rOCl~&kT*qKK`inwQNv$Lmbpk|OpuBR{YRYSpNvf5"
    b"JU$6WVfJ_Eq`}lj%F78T2dI*<^91CYpz)&+ay^;W;rX+64D;PVJXCG6vo=Mxpz%;q@t@mIa4y_7-CT}X99E^j-p?"
    b")4*2e+OaU%%Y#cD1%K-|y4;_VcH=e!bhis?7b(&mT{N(lJ8yEP8l!v_Oz#4YMwm{u{zihVu0wGoe$~v~e>>7-S?h"
    b"|2>P8E!G2N6b(gpx%o|{_lHV;z|UK-;=kam_m7IiMo=1SV1+=bWx-ozd|DT?)M^!;7MI;FUH}q91S^%WUfn#K1&>"
    b"%6+1K!eox}hMM4LL~iED7MxsZlNfTDlO&SC9P0ri%Yv8)6Ux2`&~iI5?`UhUo1dJ<YUUJew}UOg7MW|wxAwHqqKz"
    b"K?~IF-@vAtoO+o!boD&`~ueYc0d"
)
"""The same with a lone surrogate in the answer's text."""


def span(**fields):
    return Span(
        id="s", rollout_id="r", attempt_id="a", kind=SpanKind.LLM, **{"name": "n", **fields}
    )


@given(name=TEXT, attributes=st.dictionaries(TEXT, VALUES, max_size=3))
def test_every_text_and_number_comes_back_equal(name, attributes):
    written = span(name=name, attributes=attributes)
    assert SPANS.decode(encode_span(written)) == written


IDS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6)
LOGPROBS = st.lists(st.floats(allow_nan=False), max_size=6)


def call(prompt=(), ids=(), logprobs=(), *, text=""):
    choice = Choice(token_ids=list(ids), logprobs=list(logprobs), text=text)
    return ModelCall(
        id="c",
        rollout_id="r",
        attempt_id="a",
        agent="w",
        prompt_token_ids=list(prompt),
        choices=[choice, Choice(index=1)],
    )


@given(prompt=IDS, ids=IDS, logprobs=LOGPROBS, text=st.sampled_from(["hi", "\ud800"]))
def test_token_ids_and_logprobs_come_back_as_equal_arrays(prompt, ids, logprobs, text):
    written = span(call=call(prompt, ids, logprobs, text=text))
    read = SPANS.decode(encode_span(written))
    assert read == written
    assert read.call.prompt_token_ids == array("i", prompt)
    assert read.call.choices[0].token_ids == array("i", ids)
    assert read.call.choices[0].logprobs == array("d", logprobs)


def test_an_id_takes_four_bytes_and_a_log_probability_eight():
    small, large = encode(call()), encode(call(range(300), range(100), [-0.1] * 100))
    assert len(large) - len(small) <= 400 * 4 + 100 * 8 + 8


def test_arrays_are_little_endian_in_the_bytes(monkeypatch):
    written = call([1], [2], [-0.5])
    blob = encode(written)
    assert b"\x01\x00\x00\x00" in blob
    assert b"\x02\x00\x00\x00" in blob
    assert struct.pack("<d", -0.5) in blob
    # A machine of the other byte order would hold the same values with their bytes swapped.
    monkeypatch.setattr(_codec, "_SWAPPED", True)
    swapped = Codec(ModelCall).decode(blob)
    assert swapped.prompt_token_ids[0] == 1 << 24
    assert encode(swapped) == blob


@pytest.mark.parametrize(("blob", "text"), [(OLD, "hi"), (OLD_ESCAPED, "\ud800")])
def test_records_that_were_written_with_lists_are_read_as_arrays(blob, text):
    read = SPANS.decode(zlib.decompress(b85decode(blob)))
    assert read.call == call([7, 300], [0, 151_642, 2**31 - 1], [-0.1, -1e-300, 0], text=text)
    assert read.call.choices[0].logprobs.typecode == "d"
    assert read.call.choices[1].token_ids == array("i")


@pytest.mark.parametrize(
    "changed",
    [
        {"prompt_token_ids": [2**31]},
        {"prompt_token_ids": [0.5]},
        {"choices": [{"logprobs": ["x"]}]},
    ],
)
def test_a_record_with_other_numbers_than_its_fields_hold_cannot_be_read(changed):
    tree = {"id": "c", "rollout_id": "r", "attempt_id": "a", "agent": "w", **changed}
    with pytest.raises(StoreError, match="cannot be read"):
        Codec(ModelCall).decode(encode(tree))


def test_an_array_that_was_cut_off_cannot_be_read():
    tree = {"id": "c", "rollout_id": "r", "attempt_id": "a", "agent": "w"}
    with pytest.raises(StoreError, match="cannot be read"):
        Codec(ModelCall).decode(encode({**tree, "prompt_token_ids": Ext(3, b"12345")}))


def test_equal_records_have_equal_canonical_bytes_whatever_their_key_order():
    one, other = {"a": 1, "b": {"\ud800": 2, "d": 3}}, {"b": {"d": 3, "\ud800": 2}, "a": 1}
    assert encode(one, canonical=True) == encode(other, canonical=True)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (type("Count", (int,), {})(3), 3),
        (Fraction(1, 2), 0.5),
        (MappingProxyType({"a": (1,)}), {"a": [1]}),
        (type("Name", (str,), {})("x"), "x"),
        (complex(1, 2), "(1+2j)"),
        (array("d", [0.5]), array("d", [0.5])),
        (array("b", [1]), "array('b', [1])"),
    ],
)
def test_numbers_and_mappings_of_other_types_keep_their_value(value, read):
    stored = SPANS.decode(encode_span(span(attributes={"value": value})))
    assert stored.attributes == {"value": read}


def test_reward_from_a_numeric_library_is_read_as_a_float():
    stored = SPANS.decode(encode_span(span(reward=Reward(value=Fraction(1, 4)))))
    assert stored.reward == Reward(value=0.25)


def test_a_reward_of_an_older_store_has_no_reason():
    tree = msgspec.to_builtins(span(reward=Reward(value=0.5, why="new")))
    assert SPANS.decode(encode(tree)).reward == Reward(value=0.5, why="new")
    del tree["reward"]["why"]
    assert SPANS.decode(encode(tree)).reward == Reward(value=0.5)


def test_keys_that_are_no_text_become_text():
    assert SPANS.decode(encode_span(span(attributes={1: "a"}))).attributes == {"1": "a"}


def test_attributes_nested_without_end_are_kept_as_repr():
    endless: dict[str, object] = {"n": 1}
    endless["self"] = endless
    stored = SPANS.decode(encode_span(span(attributes=endless)))
    assert stored.attributes == {"n": "1", "self": repr(endless)}


def test_record_of_wrong_types_is_refused_by_name():
    with pytest.raises(StoreError, match=r"Span 'x' cannot be stored.*name"):
        detached(span(name=3), SPANS, "Span 'x'")
    with pytest.raises(StoreError, match="cannot be read"):
        SPANS.decode(encode({"id": "s"}))
    with pytest.raises(StoreError, match="cannot be read"):
        ROLLOUTS.decode(b"\xc1")


def test_output_is_kept_if_json_and_described_otherwise():
    assert json_value({"a": [1, "\ud800", 2**70]}) == {"a": [1, "\ud800", 2**70]}
    assert json_value(Task(id="t"))["id"] == "t"
    assert json_value([complex(1, 2)]) == "[(1+2j)]"
    assert json_value([Choice(token_ids=pack_ints([1, 2]))])[0]["token_ids"] == [1, 2]
    endless: list[object] = []
    endless.append(endless)
    assert json_value(endless) == "[[...]]"


DEFAULTS = {
    Span: {
        "parent_id": None,
        "agent": None,
        "agent_run_id": None,
        "sequence": 0,
        "start_ns": 0,
        "end_ns": 0,
        "status": "unset",
        "error": "",
        "attributes": {},
        "call_id": None,
        "call": None,
        "reward": None,
    },
    ModelCall: {
        "agent_run_id": "",
        "alias": "",
        "messages": [],
        "tools": [],
        "sampling": Sampling(),
        "prompt_token_ids": pack_ints(),
        "choices": [],
        "logprobs_mode": "none",
        "response_id": "",
        "model": "",
        "policy": "",
        "policy_version": 0,
        "image_token": None,
        "trainable": True,
        "streamed": False,
        "complete": False,
        "answer_bytes": 0,
        "tries": 1,
        "superseded": False,
        "status_code": 200,
        "error": "",
        "started_ns": 0,
        "first_token_ns": None,
        "ended_ns": 0,
        "thinking_tags": ("think", "thinking"),
    },
    Choice: {
        "index": 0,
        "token_ids": pack_ints(),
        "logprobs": pack_floats(),
        "text": "",
        "reasoning": "",
        "tool_calls": [],
        "function_call": None,
        "refusal": "",
        "audio": "",
        "finish_reason": None,
    },
    Sampling: {
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": None,
        "n": 1,
        "seed": None,
        "stop": (),
        "extra": {},
    },
}
"""Values that stored records leave out."""


@pytest.mark.parametrize("record", DEFAULTS, ids=lambda record: record.__name__)
def test_a_default_of_a_span_never_changes(record) -> None:
    """Stored spans leave out defaults, so another default would change what they say.

    A new field belongs into the table; a default that has to change needs a new field.
    """
    required = {
        each.name: "ro_1" if each.type is str else SpanKind.LLM
        for each in msgspec.structs.fields(record)
        if each.required
    }
    made = record(**required)
    packed = {"prompt_token_ids", "token_ids", "logprobs"}
    assert set(msgspec.msgpack.decode(encode(made))) - packed == set(required)
    read = msgspec.structs.asdict(Codec(record).decode(encode(made)))
    assert read == required | DEFAULTS[record]
