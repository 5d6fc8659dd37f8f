"""Rows that show images: verl's forward gives what the model gives to each call by itself."""

from __future__ import annotations

import base64
import random
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from agl_testing.bandit import make_triplet
from agl_verl.convert import Shown, rows_of, tensors_of
from agl_verl.convert._rows import TrainingRow
from agl_verl.vision import BLANK, vision_of, vocab_size_of
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen

from agl_core.adapters import forest
from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import CreditedCall
from agl_core.types import CallCredit, Image
from tests.trainers.verl.seeing import DEMO, data_url, make_seeing_model
from tests.trainers.verl.verl_parts import (
    FSDPEngineWithLMHead,
    apply_monkey_patch,
    response_from_nested,
    split,
)
from tests.trainers.verl.verl_parts import tensordict_utils as tu

RED, BLUE, TALL = data_url("red"), data_url("blue"), data_url("red", (8, 40))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_seeing_model(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def vision(directory):
    return vision_of(directory)


@pytest.fixture(scope="module")
def model(directory):
    return AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32).eval()


@pytest.fixture
def verls(monkeypatch):
    """The model's forward as verl has it, for one test."""
    for made in (qwen.Qwen2VLModel, qwen.Qwen2VLForConditionalGeneration):
        monkeypatch.setattr(made, "forward", made.forward)

    def patch(model):
        apply_monkey_patch(model, use_remove_padding=False)
        return model

    return patch


def prompt_of(vision, *pieces):
    """Ids and images of a prompt of texts (ids) and images (URLs)."""
    ids, images = [], []
    for piece in pieces:
        if isinstance(piece, str):
            (length,) = vision.lengths([piece])
            images.append(Image(url=piece, start=len(ids), length=length))
            ids += [vision.token] * length
        else:
            ids += piece
    return ids, images


def credited(call_id, pieces, response, *, vision, group=0):
    ids, images = prompt_of(vision, *pieces)
    triplet = make_triplet(
        call_id, response, prompt_ids=ids, images=images, rollout_id=call_id, attempt_id=call_id
    )
    credit = CallCredit(
        call_id=call_id, choice=0, advantages=[1.0] * len(response), weights=[1.0] * len(response)
    )
    return CreditedCall(triplet=triplet, credit=credit, group=group)


def talks(vision, seed):
    """Conversations that show images at any turn, some of which share their beginnings."""
    rng = random.Random(seed)
    calls = []
    for talk in range(6):
        pieces = [[1, 2]]
        for turn in range(rng.randint(1, 3)):
            if rng.random() < 0.6:
                pieces.append(rng.choice([RED, BLUE, TALL]))
            pieces.append([rng.randrange(3, 60) for _ in range(rng.randint(1, 3))])
            response = [rng.randrange(3, 60) for _ in range(rng.randint(1, 4))]
            calls.append(
                credited(f"{talk}.{turn}", list(pieces), response, vision=vision, group=talk)
            )
            pieces.append(response)
    return calls


@torch.no_grad()
def alone(model, vision, call):
    """Log-probabilities of a call's answer from its own prompt, by the model's own forward."""
    triplet = call.triplet
    ids = torch.tensor([[*triplet.prompt_ids, *triplet.response_ids]])
    urls = [image.url for image in triplet.images]
    shown = (
        {"mm_token_type_ids": (ids == vision.token).int(), **vision.inputs(urls)} if urls else {}
    )
    logits = model(input_ids=ids, **shown).logits[0, len(triplet.prompt_ids) - 1 : -1]
    chosen = torch.tensor(triplet.response_ids)[:, None]
    return torch.log_softmax(logits, -1).gather(-1, chosen)[:, 0]


def in_rows(model, tensors, *, ranks):
    """By call index, what verl's forward gives to the row that the call is in."""
    found = {}
    engine = type("Engine", (), {"pad_to_length": False, "engine_config": object()})()
    for mini, micro_batches in split(tensors, ranks):
        tu.maybe_fix_3d_position_ids(mini)
        for micro in micro_batches:
            tu.maybe_fix_3d_position_ids(micro)
            tu.assign_non_tensor(micro, use_remove_padding=False)
            inputs, arguments = FSDPEngineWithLMHead.prepare_model_inputs(engine, micro)
            with torch.no_grad():
                output = model(**inputs, use_cache=False)
            told = FSDPEngineWithLMHead.prepare_model_outputs(
                engine, output, arguments, micro, None
            )
            answers = response_from_nested(told["log_probs"], micro["response_mask"])
            streams = zip(
                micro["input_ids"].unbind(), micro["response_mask"].unbind(), answers.unbind(),
                micro["multi_modal_inputs"], strict=True,
            )  # fmt: skip
            for ids, mask, answer, seen in streams:
                found[key_of(ids, seen)] = answer[mask.bool()]
    return found


def key_of(ids, seen):
    images = seen.data if hasattr(seen, "data") else seen
    return tuple(ids.tolist()), images["pixel_values"].sum().item()


@pytest.mark.parametrize("level", ["merged", "transition"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_call_is_read_as_it_was_shown(model, vision, verls, level, ranks):
    calls = talks(vision, seed=ranks)
    expected = {call.triplet.call_id: alone(model, vision, call) for call in calls}
    batch = forest(calls, policy="p", step=1)
    rows = rows_of(batch, level=level, max_tokens=None, overlong="error").rows
    shown = Shown(vision, batch.images)
    tensors = tensors_of(
        rows, multiple=ranks, pad_id=0, agg_mode="token-mean", ranks=ranks, shown=shown
    )
    found = in_rows(verls(model), tensors, ranks=ranks)
    checked = 0
    for row in rows:
        seen = shown.read(shown.completed(row))
        key = key_of(torch.from_numpy(np.append(seen.prompt, seen.response)), seen.inputs)
        wanted = torch.cat([expected[batch.call_ids[call]] for call in row.calls])
        assert torch.allclose(found[key], wanted, atol=2e-5)
        checked += len(row.calls)
    assert checked == len(calls)


def test_positions_go_in_three_directions_where_images_are(vision):
    (call,) = [credited("a", [[1], TALL, [2]], [3], vision=vision)]
    batch = forest([call], policy="p", step=1)
    (row,) = rows_of(batch, level="merged", max_tokens=None, overlong="error").rows
    seen = Shown(vision, batch.images).read(row)
    text, time, height, width = seen.positions.tolist()
    assert text == list(range(8))
    assert time == [0, 1, 1, 1, 1, 1, 6, 7]
    assert height == [0, 1, 2, 3, 4, 5, 6, 7]
    assert width == [0, 1, 1, 1, 1, 1, 6, 7]


def test_a_row_without_an_image_ends_with_a_blank_one(vision):
    row = plain_row([1, 2], [3, 4])
    shown = Shown(vision, [RED])
    done = shown.completed(row)
    (length,) = vision.lengths([BLANK])
    assert len(done) == len(row) + length
    assert done.mask.sum() == row.mask.sum()
    assert not done.weights[len(row.response) :].any()
    assert shown.read(done).response.tolist() == [3, 4, *[vision.token] * length]
    assert shown.completed(done) is done


def test_an_image_of_another_size_is_an_error(vision):
    row = plain_row([1, -1, -1], [3])
    with pytest.raises(TrainingError, match=r"make \[6\] tokens .* but \[2\] in its recorded"):
        Shown(vision, [RED]).read(row)


def test_what_is_no_image_is_an_error(vision):
    broken = "data:image/png;base64,AAAA"
    with pytest.raises(TrainingError, match="holds no image"):
        vision.lengths([broken])
    with pytest.raises(TrainingError, match="no data:"):
        vision.lengths(["https://example.com/a.png"])


def test_what_is_transparent_is_white(vision):
    content = BytesIO()
    PIL.Image.new("RGBA", (16, 24), "#00ff0000").save(content, "PNG")
    clear = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
    pixels = [vision.inputs([url])["pixel_values"] for url in (clear, data_url("white"))]
    assert torch.equal(*pixels)


def test_the_vocabulary_is_the_one_of_the_language_model(directory):
    """A3: models that see keep its size in the configuration of their text."""
    assert vocab_size_of(directory) == AutoConfig.from_pretrained(directory).text_config.vocab_size
    assert vocab_size_of(str(DEMO)) == AutoConfig.from_pretrained(str(DEMO)).vocab_size


def test_a_model_of_text_has_no_vision():
    assert vision_of(str(DEMO)) is None


def test_a_model_without_its_image_processor_is_an_error(directory, tmp_path):
    shutil.copy(Path(directory) / "config.json", tmp_path)
    with pytest.raises(ConfigError, match="image processor cannot be loaded"):
        vision_of(str(tmp_path))


def plain_row(prompt, response):
    size = len(response)
    ones = np.ones(size, np.float32)
    return TrainingRow(
        prompt=np.array(prompt), response=np.array(response), mask=np.ones(size, np.bool_),
        advantages=ones, weights=ones, logprobs=ones, temperature=1.0, calls=(0,),
    )  # fmt: skip
