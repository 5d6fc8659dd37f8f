"""Tokens of calls and the prefix trees of groups, as a server answers them."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from agl_dashboard._drawn_tokens import CallPath, text_pieces
from agl_dashboard._prefix_tree import TreePath, prefix_tree

from agl_core.types import Choice
from tests.plugins.dashboard.token_world import (
    END,
    PROMPT,
    VOCABULARY,
    TokenWorld,
    small_run,
    write_tokenizer,
)

BYTES = {6: b"\xf0\x9f", 7: b"\x98\x80", 8: b"\xff", 9: b"a\x1b\n", 10: b""}


async def page(client, path, status=200):
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def data_of(client, rollout_id, **query):
    asked = "&".join(f"{name}={value}" for name, value in {"part": "data", **query}.items())
    return json.loads(await page(client, f"/run/r/-/tokens/{rollout_id}?{asked}"))


@pytest.fixture
async def world(tmp_path):
    return await small_run(tmp_path / "runs" / "r")


@pytest.fixture
async def client(visit, tmp_path, world):
    return await visit(tmp_path / "runs")


async def test_a_call_shows_its_exact_tokens_with_every_number(client, world):
    found = await data_of(client, world.rollouts[0], call="call-0")
    assert found["ids"] == [*PROMPT, 4, 6, 7, END]
    assert found["text"] == "Hello you↵\nyou😀<|im_end|>"
    assert found["counts"] == [1, 1, 1, 1, 1, 1, 2, 1]
    assert found["lengths"][6] == 2
    assert sum(found["lengths"]) == len(found["text"].encode("utf-16-le")) // 2
    assert found["first"] == len(PROMPT)
    assert found["states"] == [[0, 5], [2, 4]]
    measures = found["measures"]
    assert measures["logprob"] == [-0.25, -0.5, -0.75, -1.0]
    assert measures["advantage"] == [1.0] * 4
    assert measures["entropy"] == [0.5] * 4
    assert measures["mismatch"] == [-0.125] * 4
    assert measures["ratio"] == pytest.approx([2.0] * 4, rel=1e-4)


async def test_what_has_no_weight_is_shown_as_not_trained(visit, tmp_path):
    world = await small_run(
        tmp_path / "runs" / "r", weights=lambda call, at: 0.0 if at == 0 else 1.0
    )
    client = await visit(tmp_path / "runs")
    found = await data_of(client, world.rollouts[0], call="call-0")
    assert found["states"] == [[0, 5], [1, 1], [2, 3]]
    assert found["measures"]["advantage"] == [None, 1.0, 1.0, 1.0]
    assert found["measures"]["logprob"][0] == -0.25


async def test_colours_without_data_are_disabled_and_say_why(visit, tmp_path, client, world):
    path = f"/run/r/-/tokens/{world.rollouts[0]}?call=call-0"
    html = await page(client, path)
    assert re.findall(r'data-by="(\w+)"', html)[:5] == [
        "logprob",
        "advantage",
        "entropy",
        "mismatch",
        "ratio",
    ]
    assert "trained in step 1" in html
    made = TokenWorld(world.directory)
    made.calls = world.calls
    made.train(numbers=False)
    html = await page(client, path)
    assert re.findall(r'<a href[^>]*data-by="(\w+)"', html) == ["logprob", "advantage"]
    assert "Entropy: the engine gives none" in html
    assert (
        'data-by="advantage"'
        in re.search(r"<pre[^>]*>", await page(client, f"{path}&by=advantage"))[0]
    )


async def test_without_streams_every_recorded_call_has_its_log_probabilities(
    visit, tmp_path, world, client
):
    for file in (world.directory / "tokens").rglob("*.tokens"):
        file.unlink()
    found = await data_of(client, world.rollouts[1], call="call-2")
    assert found["measures"] == {"logprob": [-0.25]}
    assert found["states"] == [[0, 9], [1, 1]]
    html = await page(client, f"/run/r/-/tokens/{world.rollouts[1]}?call=call-2")
    assert "call 2 of 2" in html
    assert "train.keep_tokens" in html


async def test_without_a_tokenizer_ids_and_the_text_of_the_record_are_shown(world, client):
    (world.directory / "tokens" / "tokenizer" / "trained.json").unlink()
    found = await data_of(client, world.rollouts[0], call="call-0")
    assert not found["spelled"]
    assert found["text"] == "1 2 0 4 3 4 6 7 10 "
    assert "Hello you" in await page(client, f"/run/r/-/tokens/{world.rollouts[0]}?call=call-0")
    write_tokenizer(world.directory)
    (world.directory / "tokens" / "tokenizer" / "trained.json").write_text("no json")
    assert not (await data_of(client, world.rollouts[0], call="call-0"))["spelled"]


async def test_the_tokenizer_of_a_checkpoint_is_used(world, client):
    kept = world.directory / "tokens" / "tokenizer" / "trained.json"
    target = world.directory / "checkpoints" / "step-000001" / "policies" / "trained"
    target.mkdir(parents=True)
    kept.rename(target / "tokenizer.json")
    assert (await data_of(client, world.rollouts[0], call="call-0"))["spelled"]


async def test_tokens_of_a_trace_that_was_deleted_come_from_the_stream(visit, tmp_path, world):
    made = await TokenWorld(tmp_path / "more" / "r").open()
    await made.rollout()
    made.calls = [c for c in world.calls if c.id == "call-0"]
    made.train()
    write_tokenizer(made.directory)
    await made.close()
    client = await visit(tmp_path / "more")
    found = await data_of(client, made.rollouts[0], call="call-0")
    assert found["text"] == "Hello you↵\nyou😀<|im_end|>"
    assert found["measures"]["logprob"] == [-0.25, -0.5, -0.75, -1.0]
    html = await page(client, f"/run/r/-/tokens/{made.rollouts[0]}?call=call-0")
    assert "writer" in html


async def test_each_answer_of_a_call_has_its_own_numbers(visit, tmp_path):
    made = await TokenWorld(tmp_path / "runs" / "r").open()
    rollout = await made.rollout((PROMPT, [4, END], [1, 2, END]))
    made.train()
    await made.close()
    client = await visit(tmp_path / "runs")
    for choice, answer in ((0, [4, END]), (1, [1, 2, END])):
        found = await data_of(client, rollout, call="call-0", choice=choice)
        assert found["ids"] == [*PROMPT, *answer]
        assert found["measures"]["advantage"] == [1.0] * len(answer)
    html = await page(client, f"/run/r/-/tokens/{rollout}?call=call-0&choice=1")
    assert re.search(r'aria-current="true">Answer 1', html)


async def test_calls_are_left_and_reached_by_keys_and_the_trace_links_to_them(world, client):
    rollout = world.rollouts[1]
    html = unescape(await page(client, f"/run/r/-/tokens/{rollout}?call=call-1"))
    assert re.search(rf'data-key="j" href="/run/r/-/tokens/{rollout}\?call=call-2"', html)
    assert 'data-key="k" aria-disabled' in html
    trace = unescape(await page(client, f"/run/r/-/trace/{rollout}"))
    assert f"/run/r/-/tokens/{rollout}?view=group" in trace
    span = re.findall(r'data-row="(sp[^"]+)"', trace)[0]
    detail = unescape(await page(client, f"/run/r/-/trace/{rollout}?span={span}"))
    assert f"/run/r/-/tokens/{rollout}?call=call-1" in detail


async def test_unknown_calls_and_rollouts_are_said(world, client):
    assert "no call" in await page(client, f"/run/r/-/tokens/{world.rollouts[0]}?call=nope")
    assert "no rollout" in await page(client, "/run/r/-/tokens/nope")


async def test_the_kept_steps_are_listed(world, client, alpha_client):
    html = await page(client, "/run/r/-/tokens")
    assert re.search(r"trained <small>v4</small>", html)
    assert "entropies, before, after" in html
    assert "No tokens of a training step" in await page(alpha_client, "/run/alpha/-/tokens")


@pytest.fixture
async def alpha_client(visit, runs):
    return await visit(runs)


async def test_a_group_shares_its_prefix_once(world, client):
    html = await page(client, f"/run/r/-/tokens/{world.rollouts[0]}?view=group")
    text = " ".join(re.sub(r"<[^>]*>", " ", html).split())
    # Hello you \n you | 😀 ...; the last token of an answer is not read.
    flat, unique = (5 + 3) + (5 + 2) + (9), (5 + 3) + 1 + 2
    assert f"3 calls with {flat} tokens; {unique} (46 %) are computed" in text
    stats = re.search(r"(\d+) %</small>", await page(client, "/run/r/-/tokens"))[1]
    assert int(stats) == round(100 * unique / flat)
    assert "3 calls" in html
    assert text.count("reward 1.000") == 1
    assert text.count("reward 0.000") == 2
    assert "+1.000" in text
    for number, rollout in ((0, 0), (1, 1), (2, 1)):
        assert f"/run/r/-/tokens/{world.rollouts[rollout]}?call=call-{number}" in unescape(html)


async def test_without_streams_the_tree_comes_from_the_records(world, client):
    for file in (world.directory / "tokens").rglob("*.tokens"):
        file.unlink()
    html = await page(client, f"/run/r/-/tokens/{world.rollouts[0]}?view=group")
    assert "from the records" in html
    assert "3 calls with 24 tokens; 11 (46 %) are computed" in html


async def test_damaged_streams_show_what_is_recorded(world, client):
    (file,) = (world.directory / "tokens").rglob("*.tokens")
    file.write_bytes(file.read_bytes()[:-40])
    found = await data_of(client, world.rollouts[0], call="call-0")
    assert "logprob" in found["measures"]
    assert await page(client, f"/run/r/-/tokens/{world.rollouts[0]}?view=group")


def test_characters_of_several_tokens_are_one_piece():
    spell = BYTES.get
    assert list(text_pieces([6, 7], spell)) == [("😀", 2)]
    assert list(text_pieces([6, 9], spell)) == [("\ufffd", 1), ("a␛↵\n", 1)]
    assert list(text_pieces([8, 6], spell)) == [("\ufffd", 1), ("\ufffd", 1)]
    assert list(text_pieces([10, 99], spell)) == [("∅", 1), ("[99]", 1)]
    assert next(iter(text_pieces([6, 10, 7], spell))) == ("\ufffd", 1)


def test_every_token_belongs_to_one_piece():
    import random

    rng = random.Random(3)
    table = {n: bytes(rng.randrange(256) for _ in range(rng.randrange(1, 4))) for n in range(50)}
    for _ in range(50):
        ids = [rng.randrange(50) for _ in range(rng.randrange(1, 60))]
        pieces = list(text_pieces(ids, table.get))
        assert sum(count for _, count in pieces) == len(ids)
        assert all(text for text, _ in pieces)


def test_streams_of_other_tokens_are_not_used(world):
    from agl_streams import StreamFolder

    (stream,) = StreamFolder(world.directory).call("call-0")
    call = next(each for each in world.calls if each.id == "call-0")
    path = CallPath.of(call, Choice(token_ids=[1, 1, 1, 1], logprobs=[0.0] * 4), [stream])
    assert path is not None
    assert path.stream is None
    assert CallPath.of(call, Choice(), []) is None


def tree_of(*sequences):
    return prefix_tree(
        [
            TreePath(ids=ids, call_id=str(at), rollout_id="r", agent="a")
            for at, ids in enumerate(sequences)
        ]
    )


def test_a_tree_has_every_token_once():
    tree = tree_of([1, 2, 3], [1, 2, 4, 5], [1, 2], [9], [1, 2, 3])
    assert (tree.flat, tree.unique, tree.longest) == (13, 6, 4)
    shown = [
        (part.depth, list(part.ids), part.calls, [p.call_id for p in part.ends])
        for part in tree.parts
    ]
    assert shown == [
        (0, [1, 2], 4, ["2"]),
        (1, [3], 2, ["0", "4"]),
        (1, [4, 5], 1, ["1"]),
        (0, [9], 1, ["3"]),
    ]
    assert tree_of().parts == []


def test_a_deep_tree_needs_no_recursion():
    tree = tree_of(*([0] * size for size in range(1, 3000)))
    assert tree.unique == 2999
    assert len(tree.parts) == 2999


def test_the_vocabulary_of_the_tests_is_as_it_says():
    assert VOCABULARY[6] + VOCABULARY[7] == "ðŁĺĢ"
