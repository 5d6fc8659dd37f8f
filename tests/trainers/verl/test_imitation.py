"""Conversations on the engine ``verl``: the same tokens as on ``torch``, as rows with a mask."""

from __future__ import annotations

import json
from pathlib import Path

from agl_imitation._conversations import read_examples
from agl_imitation._rendering import Chat, rendered
from agl_imitation._sft import SFT, SFTOptions
from agl_torch.engine import TorchEngine
from agl_verl._engine import VerlEngine
from agl_verl._loss import CrossEntropy
from agl_verl.convert import rows_of

from agl_core.adapters import forest
from agl_core.training import Batcher
from agl_core.types import Policy

MODEL = str(Path(__file__).parents[3] / "examples" / "agl_demo" / "model")
TURNS = [
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three?"},
    {"role": "assistant", "content": "four"},
]


def test_both_engines_render_alike():
    ours, theirs = VerlEngine.renderer(MODEL), TorchEngine.renderer(MODEL)
    for count in range(1, 5):
        assert list(ours(TURNS[:count], [])) == list(theirs(TURNS[:count], []))


def test_rows_train_the_answers_and_nothing_else(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"messages": TURNS, "agent": "writer"}))
    algorithm = SFT(SFTOptions(data=[str(data)]))
    policy = Policy(name="p", model=MODEL, agents=("writer",), trainable=True)
    chat = Chat(policy=policy, render=VerlEngine.renderer(MODEL), limit=None)
    (example,) = read_examples(data)
    group = rendered(example, chat)
    (batch,), _ = Batcher(algorithm, forest).build([group], step=0)

    rows = rows_of(
        CrossEntropy().prepared(batch), level="merged", max_tokens=None, overlong="error"
    ).rows

    answers = [
        call.response_ids for paths in group.trajectories for each in paths for call in each.calls
    ]
    trained = [token for row in rows for token in row.response[row.mask].tolist()]
    assert sorted(trained) == sorted(token for answer in answers for token in answer)
    assert all((row.weights[row.mask] == 1).all() for row in rows)
    assert all((row.advantages[row.mask] == 1).all() for row in rows)
