"""What is found in texts, and what is left of it."""

import json
from collections.abc import Iterable

import pytest
from agl_privacy import Masker, MaskOptions
from hypothesis import given, settings
from hypothesis import strategies as st

from agl_core.errors import ConfigError, MissingExtraError

NAMES = ["Anna Schmidt", "Li", "O'Brien", "Jean-Luc", "王小明"]
MASKER = Masker(MaskOptions(names=NAMES, regions=["US", "DE"]))


def halves(text: str) -> Iterable[tuple[int, int]]:
    return [(at, at + 6) for at in range(len(text)) if text.startswith("secret", at)]


def fails(text: str) -> Iterable[tuple[int, int]]:
    raise ValueError(text)


def outside(text: str) -> Iterable[tuple[int, int]]:
    return [(0, len(text) + 1)]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("john@example.com", "j***@e*****e.com"),
        ("Mail (john.doe+x@mail.example.co.uk).", "Mail (j*********@m*************o.uk)."),
        ("**j@ab.io**", "***@a*.io**"),
        ("to=john%40example.com&x=1", "to=j***%40e*****e.com&x=1"),
        ("a@b.com@c.org", "a******@*.org"),
        ("müller@exämple.de", "m*****@e*****e.de"),
        ("no mail: a@b, @c.com, x@ y.com", "no mail: a@b, @c.com, x@ y.com"),
        ("+49 170 1234567", "+** *** *******"),
        ("tel +1 (202) 555-0143!", "tel +* (***) ***-****!"),
        ("call 202-555-0143 now", "call ***-***-**** now"),
        ("at 2026-11-30 18:47:27 +00:00", "at 2026-11-30 18:47:27 +00:00"),
        ("loss +0.1234567890, 1e+10, step 12", "loss +0.1234567890, 1e+10, step 12"),
        ("192.168.1.1", "192.***.*.1"),
        ("http://10.0.0.17:8080/x.", "http://10.*.*.17:8080/x."),
        ("127.0.0.1 ::1 0.0.0.0", "127.0.0.1 ::1 0.0.0.0"),
        ("v1.2.3.4, 1.2.3.4.5, 300.1.1.1", "v1.2.3.4, 1.2.3.4.5, 300.1.1.1"),
        ("[2001:db8::5]:80 and fe80::1", "[2001:***:5]:80 and fe80:***:1"),
        ("std::vector a::b x[1::2] 12:30:45", "std::vector a::b x[1::2] 12:30:45"),
        ("Anna Schmidt and ANNA-SCHMIDT", "A**a S*****t and A**A-S*****T"),
        ("Anna, Lizzy, Li and anna_schmidt", "Anna, Lizzy, L* and a**a_s*****t"),
        ("at 10 Downing Street, London SW1A 2AA!", "at ** ******* ******, ****** **** ***!"),
        ("Li, Musterweg 1, 10115 Berlin", "L*, ********* *, ***** ******"),
        ("O'Brien met 王小明。", "*'B***n met 王*明。"),
        ("", ""),
    ],
)
def test_each_kind_has_its_mask(text: str, masked: str) -> None:
    assert MASKER.text(text) == masked


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("email", "john@example.com"),
        ("phone", "+49 170 1234567"),
        ("address", "192.168.1.1"),
        ("postal", "10 Downing Street, London SW1A 2AA"),
        ("name", "Anna Schmidt"),
    ],
)
def test_each_kind_has_a_switch(kind: str, text: str) -> None:
    assert MASKER.text(text) != text
    without = Masker(MaskOptions(names=NAMES).model_copy(update={kind: False}))
    assert without.text(text) == text
    assert not without.holds(text)


def test_json_stays_json_also_where_characters_are_escaped() -> None:
    text = '{"mail": "\\u006aohn@example.com", "\\u00e9x": ["\\u00e9va@x.com", 17]}'

    masked = json.loads(MASKER.text(text))

    assert masked == {"mail": "j***@e*****e.com", "éx": ["é**@*.com", 17]}
    assert MASKER.holds(text)
    assert MASKER.text('{"a":  1}') == '{"a":  1}'


def test_values_keep_their_form_and_token_lists_their_object() -> None:
    ids = [491701234567, 5, 3]
    value = {"a@b.com": 1, "c@d.com": 2, "ids": ids, "in": ["x@y.com", None, True, ("z@y.com",)]}

    masked = MASKER.value(value)

    assert masked == {
        "*@*.com": 1,
        "*@*.com (2)": 2,
        "ids": ids,
        "in": ["*@*.com", None, True, ["*@*.com"]],
    }
    assert masked["ids"] is ids


def test_deep_values_are_hidden() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert MASKER.value(value) == "***"
    assert MASKER.text("[" * 100_000 + "a@b.com") == "[" * 100_000 + "*@*.com"


CHARACTERS = st.characters(exclude_categories=[]) | st.sampled_from(
    "@.+-*:%()[]{}\"'\\0179aFz\x00\ud800"
)
PLANTED = st.sampled_from(
    [
        "john@example.com",
        "+49 170 1234567",
        "192.168.1.1",
        "2001:db8::5",
        "Anna Schmidt",
        "\\u0061",
        "1 A St, B, NY 10001",
    ]
)
TEXTS = st.lists(PLANTED | st.text(CHARACTERS, max_size=12), max_size=8).map("".join)


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_masking_twice_changes_nothing_and_no_text_raises(text: str) -> None:
    masked = MASKER.text(text)

    assert MASKER.text(masked) == masked
    assert not MASKER.find(masked)
    assert MASKER.holds(text) == (masked != text)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 10_000_000,
        "Nothing is here, of 3 words. " * 200_000 + "a@b.com",
        "a@" * 200_000,
        "a@b.com " * 50_000,
        "+1" * 200_000,
        "1." * 200_000,
        "+49 170 1234567 " * 20_000,
        "1:" * 200_000,
        "(1" * 200_000,
        "\ud800\x00" * 500_000,
        "12 Main Street, A IL 62704 " * 50_000,
        "Am Aa-Bb-Cc Dd 10115 Berlin " * 50_000,
        "AA11 1AA " * 100_000,
    ],
    ids=lambda text: text[:4].encode("unicode_escape").decode(),
)
@pytest.mark.timeout(120)
def test_long_texts_of_any_kind_are_masked_in_linear_time(text: str) -> None:
    masked = MASKER.text(text)
    assert "170" not in masked or "+49" not in text


def test_users_bring_recognizers() -> None:
    masker = Masker(MaskOptions(recognizers=[f"{__name__}:halves"]))
    assert masker.text("a secret for john@example.com") == "a s****t for j***@e*****e.com"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (MaskOptions(recognizers=[f"{__name__}:NAMES"]), "cannot be called"),
        (MaskOptions(recognizers=["nothing"]), "names no object"),
        (MaskOptions(regions=["Germany"]), "'Germany', which is no region"),
        (MaskOptions(names=["A"]), "'A', which is no name"),
        (MaskOptions(names_file="/nothing/here"), "/nothing/here"),
    ],
)
def test_wrong_options_are_errors(options: MaskOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Masker(options)


@pytest.mark.parametrize(
    ("name", "message"), [("fails", "failed: ValueError"), ("outside", r"returned \(0, 10\)")]
)
def test_errors_of_a_recognizer_do_not_quote_the_text(name: str, message: str) -> None:
    masker = Masker(MaskOptions(recognizers=[f"{__name__}:{name}"]))
    with pytest.raises(ConfigError, match=message) as caught:
        masker.text("Erna Pfau")
    assert "Erna" not in str(caught.value)


def test_without_the_extra_any_number_with_a_plus_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl_privacy._find.has_phonenumbers", lambda: False)
    assert Masker().text("+49 170 1234567, 202-555-0143") == "+** *** *******, 202-555-0143"
    with pytest.raises(MissingExtraError, match=r"pip install 'agl-core\[privacy\]"):
        Masker(MaskOptions(regions=["US"]))


def test_names_come_from_a_file(tmp_path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("Erna Pfau\n\n  Li\n")
    masker = Masker(MaskOptions(names_file=str(file)))
    assert masker.text("erna pfau, Li") == "e**a p**u, L*"
