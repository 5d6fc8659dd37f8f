import json
import math
from decimal import Decimal
from fractions import Fraction

import pytest
from agl_rewards import ExactMatch, JsonSchema, Numeric, Regex
from agl_rewards._numeric import as_number, numbers
from hypothesis import given
from hypothesis import strategies as st

from agl_core.errors import ConfigError, RewardError
from agl_core.types import Task


def score(reward, output, expected=None):
    return reward(Task(id="t", expected=expected), output, None)


@pytest.mark.parametrize(
    ("output", "expected", "options", "value"),
    [
        ("Paris", "Paris", {}, 1),
        (" Paris\n", "Paris", {}, 1),
        ("New  York", "New York", {}, 1),
        ("paris", "Paris", {}, 0),
        ("STRASSE", "straße", {"ignore_case": True}, 1),
        ("e\u0301", "\u00e9", {}, 1),
        (" Paris", "Paris", {"ignore_space": False}, 0),
        ("7", 7, {}, 1),
        (7, "7", {}, 1),
        ([1, 2], [1, 2], {}, 1),
        ({"a": 1}, {"a": 2}, {}, 0),
        (None, "None", {}, 0),
        ({"answer": {"text": "x"}}, "x", {"field": "answer.text"}, 1),
        ({"answers": ["x", "y"]}, "y", {"field": "answers.1"}, 1),
        ({"other": "x"}, "x", {"field": "answer"}, 0),
        ("x", "x", {"field": "answer"}, 0),
        ([], "x", {"field": "0"}, 0),
        (Task(id="1", input="x"), "x", {"field": "input"}, 1),
    ],
)
def test_exact_match(output, expected, options, value):
    assert score(ExactMatch(**options), output, expected) == value


@pytest.mark.parametrize("reward", [ExactMatch(), Numeric(), Regex(pattern="(a)", group=1)])
def test_a_row_without_an_expected_answer_is_an_error(reward):
    with pytest.raises(RewardError, match="task 't' has none"):
        score(reward, "a")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer is 42.", [42]),
        ("1,234,567.8 people", [1234567.8]),
        ("1\u202f234 and 1\u00a0234 and 1'234 and 1_234", [1234] * 4),
        ("(1,2) or 1, 2", [1, 2, 1, 2]),
        ("between 3-5", [3, 5]),
        ("-7, +8, −9", [-7, 8, -9]),
        ("- 5 apples", [5]),
        ("$1,200 and -€3 and £ .5", [1200, -3, 0.5]),
        ("50%, 12.5 %", [0.5, 0.125]),
        ("1e-5 and 2.5E3", [1e-5, 2500]),
        ("it is...5", [5]),
        ("version 1.2.3", [1.2]),
        ("B2 and gpt4", []),
        ("5kg", [5]),
        ("x=5", [5]),
        ("1234,567", [1234, 567]),
        ("1" * 400, []),
        ("none at all", []),
    ],
)
def test_numbers_in_text(text, found):
    assert numbers(text) == pytest.approx(found)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["{}", "is {}.", "({})"]))
def test_every_float_is_read_back_from_a_sentence(value, sentence):
    assert as_number(sentence.format(repr(value))) == value


@given(st.integers(-(10**15), 10**15))
def test_thousands_separators_are_read(value):
    assert numbers(f"about {value:,} of them") == [value]


@pytest.mark.parametrize(
    ("output", "expected", "options", "value"),
    [
        ("so 3.14", 3.14, {}, 1),
        ("so 3.15", 3.14, {}, 0),
        ("so 3.15", 3.14, {"abs_tol": 0.02}, 1),
        ("103", 100, {"rel_tol": 0.03}, 1),
        ("104", 100, {"rel_tol": 0.03}, 0),
        ("0.5", "50%", {}, 1),
        (Decimal("2.5"), "2.5", {}, 1),
        (Fraction(1, 4), 0.25, {}, 1),
        ("1 then 2", 2, {}, 1),
        ("1 then 2", 1, {"pick": "first"}, 1),
        ("1 then 2", 2, {"pick": "only"}, 0),
        ("words", 1, {}, 0),
        (None, 1, {}, 0),
        (True, 1, {}, 0),
        (float("nan"), 1, {}, 0),
        (float("inf"), 1, {}, 0),
        (10**400, 1, {}, 0),
        ({"n": "7"}, 7, {"field": "n"}, 1),
        ({}, 7, {"field": "n"}, 0),
    ],
)
def test_numeric(output, expected, options, value):
    assert score(Numeric(**options), output, expected) == value


@pytest.mark.parametrize("expected", ["none", float("nan"), True, [1]])
def test_a_row_without_a_number_is_an_error(expected):
    with pytest.raises(RewardError, match="holds no finite number"):
        score(Numeric(), "1", expected)


@pytest.mark.parametrize(
    ("output", "expected", "options", "value"),
    [
        ("the answer: 7", None, {"pattern": r"answer: \d"}, 1),
        ("no", None, {"pattern": r"answer"}, 0),
        ("aXb", None, {"pattern": "x", "ignore_case": True}, 1),
        ("abc", None, {"pattern": "b", "full": True}, 0),
        ("abc", None, {"pattern": "...", "full": True}, 1),
        ("a\nb", None, {"pattern": "^b$", "multiline": True}, 1),
        ("a\nb", None, {"pattern": "a.b"}, 0),
        ("a\nb", None, {"pattern": "a.b", "dot_all": True}, 1),
        ("answer: 7", "7", {"pattern": r"answer: (\d)", "group": 1}, 1),
        ("answer: 7", 7, {"pattern": r"answer: (?P<n>\d)", "group": "n"}, 1),
        ("answer: 8", 7, {"pattern": r"answer: (\d)", "group": 1}, 0),
        ("a", "x", {"pattern": r"a(b)?", "group": 1}, 0),
        (None, None, {"pattern": "None"}, 0),
        (12, None, {"pattern": r"^\d+$"}, 1),
    ],
)
def test_regex(output, expected, options, value):
    assert score(Regex(**options), output, expected) == value


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pattern": "("}, "malformed"),
        ({"pattern": "a", "group": 1}, "no group 1"),
        ({}, r"regex\.pattern: is required"),
        ({"pattern": "a", "fulll": True}, r"did you mean 'regex\.full'"),
    ],
)
def test_a_wrong_pattern_is_a_configuration_error(options, reason):
    with pytest.raises(ConfigError, match=reason):
        Regex(**options)


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "default": 3}},
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("output", "value"),
    [
        ('{"name": "x", "n": 1}', 1),
        ('```json\n{"name": "x"}\n```', 1),
        ({"name": "x"}, 1),
        ('{"name": "x", "n": "1"}', 0),
        ('{"n": 1}', 0),
        ('{"name": NaN}', 0),
        ("{", 0),
        ("", 0),
        (None, 0),
        ("[" * 100_000, 0),
    ],
)
def test_json_schema(output, value):
    assert score(JsonSchema(schema=SCHEMA), output) == value


def test_json_schema_options(tmp_path):
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA), encoding="utf-8-sig")
    fenced = '```\n{"name": "x"}\n```'

    assert score(JsonSchema(schema=str(file), field="out"), {"out": '{"name": "x"}'}) == 1
    assert score(JsonSchema(schema=str(file), field="out"), {}) == 0
    assert score(JsonSchema(schema=SCHEMA, unfence=False), fenced) == 0


@pytest.mark.parametrize("output", ['{"score": 1e999}', {"score": -math.inf}, "[[1e999]]"])
def test_json_schema_refuses_numbers_that_are_not_finite(output):
    """A5: 0 with the reason, though Python reads 1e999 as a number."""
    given = score(JsonSchema(schema={}), output)

    assert given == 0
    assert "not finite" in given.why


MATCH = {"pattern": r"= (\d)", "group": 1}


@pytest.mark.parametrize(
    ("reward", "output", "expected", "why"),
    [
        (ExactMatch(), "Paris ", "Paris", ""),
        (ExactMatch(), "Rome", "Paris", "expected 'Paris', got 'Rome'"),
        (ExactMatch(), None, "Paris", "expected 'Paris', got None"),
        (ExactMatch(), {"a": 1}, {"a": 2}, "expected {'a': 2}, got {'a': 1}"),
        (ExactMatch(field="a.b"), {"a": 1}, "x", "the output has no field 'a.b'"),
        (Numeric(), "so 3.14", 3.14, ""),
        (Numeric(), "so 3.15", 3.14, "expected 3.14, got 3.15"),
        (Numeric(rel_tol=0.5), "4", 2, "expected 2.0 within 1, got 4.0"),
        (Numeric(), "words", 1, "expected 1.0, got 'words'"),
        (Numeric(pick="only"), "1 or 2", 1, "expected 1.0 as the only number, got '1 or 2'"),
        (Numeric(field="n"), {}, 1, "the output has no field 'n'"),
        (Regex(**MATCH), "x = 7", 7, ""),
        (Regex(**MATCH), "x = 8", 7, "expected '7', group 1 captured '8'"),
        (Regex(**MATCH), "x", 7, r"'x' does not match the pattern = (\d)"),
        (Regex(pattern="a"), None, None, "None does not match the pattern a"),
        (Regex(pattern="a", field="n"), {}, None, "the output has no field 'n'"),
        (JsonSchema(schema=SCHEMA), '{"name": "x"}', None, ""),
        (JsonSchema(schema=SCHEMA), '{"n": 1}', None, "data must contain ['name'] properties"),
        (JsonSchema(schema=SCHEMA), {"name": "x", "n": "1"}, None, "data.n must be integer"),
        (JsonSchema(schema=SCHEMA, field="n"), {}, None, "the output has no field 'n'"),
    ],
)
def test_a_reward_that_is_not_full_says_why(reward, output, expected, why):
    assert score(reward, output, expected).why == why


def test_the_parser_says_why_an_answer_is_not_json():
    assert score(JsonSchema(schema={}), "{").why.startswith("the answer is not JSON: Expecting")


@pytest.mark.parametrize("output", ["x" * 1_000_000, ["y" * 1_000_000], "\ud83d" * 1_000])
@pytest.mark.parametrize("reward", [ExactMatch(), Regex(pattern="z"), Numeric()])
def test_a_reason_shows_the_beginning_of_a_long_answer(reward, output):
    why = score(reward, output, 1).why

    assert len(why) < 400
    assert "more characters]" in why
    why.encode()


def test_json_schema_does_not_change_the_output():
    output = {"name": "x"}

    score(JsonSchema(schema=SCHEMA), output)

    assert output == {"name": "x"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no such type"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"pattern": "("},
        "absent.json",
    ],
)
def test_a_wrong_schema_is_a_configuration_error(schema):
    with pytest.raises(ConfigError, match="json_schema"):
        JsonSchema(schema=schema)
