"""The parts of the SQL program: databases that queries cannot change, rows compared, questions."""

from __future__ import annotations

import importlib
import json
import re
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

import agl_core as agl

FOLDER = Path(__file__).parents[2] / "examples" / "13_sql"
NAMES = ("database", "domains", "questions", "make_data", "program", "run_agent", "make_model")
ENDLESS = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT COUNT(*) FROM t"


@pytest.fixture(scope="module")
def sql():
    known = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
    finally:
        sys.path.remove(str(FOLDER))
        for name in NAMES:
            del sys.modules[name]
        sys.modules.update(known)


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "space.sqlite"
    with closing(sqlite3.connect(made)) as connection:
        connection.executescript(
            "CREATE TABLE moon (name TEXT, width INTEGER);"
            "INSERT INTO moon VALUES ('ada', 3), ('bea', 1), ('cal', 3);"
        )
    return made


def test_a_query_returns_rows_as_text(sql, path):
    result = sql.database.run(path, "SELECT name, width FROM moon WHERE width > 2;")
    assert result.rows == (("ada", 3), ("cal", 3))
    assert result.text() == "ada | 3\ncal | 3"
    assert sql.database.run(path, "SELECT name FROM moon WHERE width > 9").text() == "no rows"


@pytest.mark.parametrize("query", [ENDLESS, ENDLESS.replace("COUNT(*)", "x") + " WHERE x < 0"])
def test_a_query_that_never_ends_is_stopped(sql, path, monkeypatch, query):
    monkeypatch.setattr(sql.database, "TIMEOUT_S", 0.02)
    assert sql.database.run(path, query).text() == "Error: stopped after 0.02 s"


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM moon",
        "DROP TABLE moon",
        "UPDATE moon SET width = 0",
        "INSERT INTO moon VALUES ('dan', 1)",
        "CREATE TABLE sun (name TEXT)",
        "CREATE TEMP TABLE sun (name TEXT)",
        "CREATE VIEW sun AS SELECT 1",
        "ATTACH 'other.sqlite' AS other",
        "VACUUM",
        "VACUUM INTO 'other.sqlite'",
        "PRAGMA writable_schema = 1",
        "BEGIN",
        "REINDEX",
        "SELECT 1; DROP TABLE moon",
        "SELECT load_extension('other')",
        "WITH gone AS (SELECT name FROM moon) DELETE FROM moon",
    ],
)
def test_a_query_that_is_more_than_a_select_is_an_error(sql, path, monkeypatch, query):
    monkeypatch.chdir(path.parent)
    before = path.read_bytes()
    assert sql.database.run(path, query).text().startswith("Error: ")
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("", "no query"),
        (" \n", "no query"),
        ("-- nothing", "no query"),
        ("SELECT name FORM moon", "syntax error|no such column"),
        ("SELECT width FROM sun", "no such table: sun"),
        ("I am sorry, I cannot do that.", "syntax error"),
        ("SELECT ?", "binding"),
        ("SELECT 1 \0", "null character"),
        ("SELECT '\ud800'", "surrogates"),
        ("SELECT CAST(x'ff' AS TEXT)", "UTF-8"),
        ("SELECT hex(zeroblob(1000000000))", "too big"),
        ("SELECT " + "(" * 2000 + "1", "stack|parser|depth|incomplete"),
    ],
)
def test_what_is_no_query_is_an_error(sql, path, query, error):
    result = sql.database.run(path, query)
    assert not result.rows
    assert len(result.text()) <= 2048
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(result.text())


def test_a_million_rows_are_cut(sql, path):
    query = (
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t LIMIT 1000000) "
        "SELECT x FROM t"
    )
    result = sql.database.run(path, query)
    assert (len(result.rows), result.is_cut) == (1000, True)
    assert len(result.text()) == 2048
    assert result.text().endswith("\n...")
    assert not sql.database.matches(result, result, ordered=False)


def test_a_long_schema_is_cut(sql, tmp_path):
    path = tmp_path / "wide.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE wide ({', '.join(f'column_{n}' for n in range(500))})")
    assert len(sql.database.schema(path)) == 2048
    assert sql.database.run(path, "SELECT column_499 FROM wide").text() == "no rows"


def test_a_path_without_a_database_is_an_error_and_makes_none(sql, tmp_path):
    for missing in (tmp_path / "missing.sqlite", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"No database at .*make_data.py"):
            sql.program.answer("How many?", missing)
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_is_no_database_is_an_error(sql, tmp_path):
    path = tmp_path / "text.sqlite"
    path.write_text("no database" * 100, encoding="utf-8")
    assert sql.database.run(path, "SELECT 1 FROM moon").text() == "Error: file is not a database"
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        sql.program.answer("How many?", path)


def test_each_rollout_has_a_copy_that_is_removed(sql, path):
    with sql.database.copied(path) as one, sql.database.copied(path) as other:
        assert len({path, one, other}) == 3
        with closing(sqlite3.connect(one)) as connection:
            connection.execute("DROP TABLE moon")
        assert sql.database.run(other, "SELECT COUNT(*) FROM moon").rows == ((3,),)
    assert not one.parent.exists()
    with pytest.raises(KeyError), sql.database.copied(path) as third:
        raise KeyError
    assert not third.parent.exists()
    assert sql.database.run(path, "SELECT COUNT(*) FROM moon").rows == ((3,),)


@pytest.mark.parametrize(
    ("given", "gold", "as_sets", "as_lists"),
    [
        ([(1,), (2,)], [(2,), (1,)], True, False),
        ([(1,), (2,)], [(1,), (2,)], True, True),
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], False, False),
        ([(1,)], [(1,), (1,)], False, False),
        ([(1, "a")], [("a", 1)], False, False),
        ([(1,)], [(1.0,)], True, True),
        ([(0.1 + 0.2,)], [(0.3,)], True, True),
        ([(0.31,)], [(0.3,)], False, False),
        ([("1",)], [(1,)], False, False),
        ([(None,)], [(0,)], False, False),
        ([], [(1,)], False, False),
    ],
)
def test_rows_are_compared_as_often_as_they_occur(sql, given, gold, as_sets, as_lists):
    results = [sql.database.Result(tuple(rows)) for rows in (given, gold)]
    assert sql.database.matches(*results, ordered=False) is as_sets
    assert sql.database.matches(*results, ordered=True) is as_lists


def test_an_error_matches_nothing(sql):
    failed, empty = sql.database.Result(error="no such table"), sql.database.Result()
    assert not sql.database.matches(failed, failed, ordered=False)
    assert not sql.database.matches(failed, empty, ordered=False)


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT name FROM moon ORDER BY width", True),
        ("select name from moon order\n by width limit 1", True),
        ("SELECT name FROM moon", False),
        ("SELECT name FROM (SELECT name FROM moon ORDER BY (width)) GROUP BY name", False),
        ("SELECT name FROM moon WHERE name = 'order by'", False),
        ("SELECT name FROM moon WHERE name = ')' ORDER BY width", True),
    ],
)
def test_only_the_outer_order_counts(sql, query, ordered):
    assert sql.database.is_ordered(query) is ordered


@pytest.mark.parametrize(
    ("answer", "query"),
    [
        ("SELECT 1", "SELECT 1"),
        ("Here it is:\n```sql\nSELECT 1;\n```\nIt counts.", "SELECT 1;"),
        ("```\nSELECT 1", "SELECT 1"),
        ("```SELECT 1```", "SELECT 1"),
        ("", ""),
        ("```", ""),
    ],
)
def test_the_query_in_an_answer(sql, answer, query):
    assert sql.program.query_of(answer) == query


def dump(path):
    with closing(sqlite3.connect(path)) as connection:
        return [*connection.iterdump()]


def test_the_data_is_what_its_script_makes(sql, tmp_path):
    sql.make_data.make(tmp_path)
    made = sorted(file.name for file in tmp_path.iterdir())
    assert made == sorted(file.name for file in (FOLDER / "data").iterdir())
    for name in made:
        read = dump if name.endswith(".sqlite") else Path.read_bytes
        assert read(tmp_path / name) == read(FOLDER / "data" / name)
    sql.make_data.make(tmp_path / "other", seed=1)
    assert dump(tmp_path / "other" / "space.sqlite") != dump(tmp_path / "space.sqlite")


def test_held_out_questions_are_about_other_tables(sql):
    train, held_out = sql.run_agent.train_tasks(), sql.run_agent.held_out_tasks()
    assert (len(train), len(held_out)) == (400, 200)
    tables = {}
    for split in (train, held_out):
        databases = Counter(task.input["database"] for task in split)
        assert set(databases.values()) == {20}
        queries = "SELECT name FROM sqlite_master"
        tables[len(databases)] = {
            row
            for name in databases
            for row in sql.database.run(FOLDER / "data" / name, queries).rows
        }
    assert {count: len(names) for count, names in tables.items()} == {20: 40, 10: 20}
    assert not tables[20] & tables[10]


def test_no_schema_that_the_model_is_made_on_is_held_out(sql):
    chance = sql.make_model.random.Random(0)
    held_out = {
        frozenset(table.name for table in schema)
        for schema in sql.domains.schemas(sql.domains.HELD_OUT).values()
    }
    drawn = [sql.make_model.drawn_schema(chance) for _ in range(20_000)]
    assert not held_out & {frozenset(table.name for table in schema) for schema in drawn}


def test_a_mistake_has_another_form_and_no_word_that_the_query_lacks(sql):
    chance = sql.make_model.random.Random(0)
    connection, schema = sql.make_model.drawn_database(chance)
    seen = set()
    while len(seen) < len(sql.questions.TEMPLATES):
        question = sql.questions.draw(connection, schema, chance)
        seen.add(question.template)
        query = sql.make_model.mistaken(question.gold, chance)
        assert query != question.gold
        assert set(re.findall(r"[a-z]+", query)) <= {*re.findall(r"[a-z]+", question.gold), "name"}
        assert not sql.make_model.execute(connection, query).error or "IN (" in question.gold
    connection.close()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"gold": None}, "has no gold: add it"),
        ({"question": None}, "has no question: add it"),
        ({"gold": "SELECT name FROM moon WHERE width > 9"}, "returns no rows; correct or remove"),
        ({"gold": "SELECT name FROM sun"}, "no such table: sun"),
        ({"gold": "DELETE FROM moon"}, "only SELECT"),
        ({"database": "mars.sqlite"}, r"no database 'mars\.sqlite'.*make_data"),
    ],
)
def test_a_question_that_cannot_be_rewarded_is_an_error(sql, path, changes, problem):
    question = {
        "id": "space-0",
        "database": path.name,
        "question": "How many?",
        "gold": "SELECT COUNT(*) FROM moon",
        **changes,
    }
    file = path.parent / "questions.jsonl"
    known = {key: value for key, value in question.items() if value is not None}
    file.write_text(json.dumps(known) + "\n", encoding="utf-8")
    with pytest.raises(sql.run_agent.QuestionError, match=problem) as caught:
        [*sql.run_agent.tasks(file)]
    assert "Question 'space-0'" in str(caught.value)


@pytest.mark.parametrize(
    ("query", "score"),
    [
        ("SELECT name FROM moon ORDER BY width DESC, name", 1.0),
        ("SELECT name FROM moon", 0.0),
        ("SELECT nothing FROM moon", 0.0),
        ("", 0.0),
        ("DROP TABLE moon", 0.0),
    ],
)
def test_the_reward_is_execution_match(sql, path, monkeypatch, query, score):
    monkeypatch.setattr(sql.run_agent, "DATA", path.parent)
    gold = "SELECT name FROM moon ORDER BY width DESC, name"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE moon SET width = 9 WHERE name = 'cal'")
        connection.commit()
    task = agl.Task(id="space-0", input={"database": path.name, "gold": gold})
    assert sql.run_agent.reward(task, {"query": query}, None) == score
