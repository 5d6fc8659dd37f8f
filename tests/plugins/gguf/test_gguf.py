"""GGUF files: what is written equals what transformers computes and tokenizes."""

from __future__ import annotations

import shutil

import gguf
import pytest
import torch
from agl_gguf import write_gguf
from agl_gguf._shape import shape_of
from safetensors.torch import load_file, save_file
from tokenizers import Regex, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from agl_core.errors import ConfigError, MissingExtraError
from tests.plugins.gguf.conftest import BYTES, edit, llama_tokenizer, make_model

IDS = torch.tensor([[5, 60, 200, 30, 17, 101, 5, 99]])
TEXT = "<|im_start|>user\nthe 12 things'll <tools>\n é<|im_end|>\n"


def logits(directory, **where):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **where)
    with torch.no_grad():
        return model(IDS).logits


def fields(file):
    read = gguf.GGUFReader(file)
    return {name: field.contents() for name, field in read.fields.items()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_the_file_computes_what_the_directory_computes(tmp_path, kind, tied):
    made = make_model(tmp_path / "model", kind, tie_word_embeddings=tied)
    write_gguf(made, tmp_path / "out" / "m.gguf")
    back = logits(tmp_path / "out", gguf_file="m.gguf")
    assert torch.equal(back, logits(made))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["m.gguf"]


def test_biases_of_a_llama_are_reordered_with_its_weights(tmp_path):
    made = make_model(tmp_path / "model", "llama", attention_bias=True)
    write_gguf(made, tmp_path / "m.gguf")
    stored = load_file(made / "model.safetensors")
    written = {each.name: each.data for each in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for part in ("q", "k"):
        for what in ("weight", "bias"):
            values = stored[f"model.layers.1.self_attn.{part}_proj.{what}"]
            found = torch.tensor(written[f"blk.1.attn_{part}.{what}"].copy())
            # A head's dimensions 0, 8, 1, 9, ... of 16.
            order = [number + 8 * half for number in range(8) for half in (0, 1)]
            for head in range(len(values) // 16):
                mine = values[head * 16 : (head + 1) * 16]
                assert torch.equal(found[head * 16 : (head + 1) * 16], mine[order])


@pytest.mark.parametrize(
    ("stored", "wanted", "kind"),
    [
        (torch.bfloat16, None, "BF16"),
        (torch.float16, None, "F16"),
        (torch.float32, "bfloat16", "BF16"),
        (torch.float32, "float16", "F16"),
        (torch.bfloat16, "float32", "F32"),
    ],
)
def test_matrices_have_the_dtype_that_is_asked_for(tmp_path, stored, wanted, kind):
    made = make_model(tmp_path / "model", "qwen2")
    file = made / "model.safetensors"
    save_file({n: t.to(stored) for n, t in load_file(file).items()}, file, {"format": "pt"})
    write_gguf(made, tmp_path / "m.gguf", dtype=wanted)
    tensors = gguf.GGUFReader(tmp_path / "m.gguf").tensors
    kinds = {each.name: each.tensor_type.name for each in tensors}
    assert kinds["blk.0.attn_q.weight"] == kinds["token_embd.weight"] == kind
    assert kinds["blk.0.attn_q.bias"] == kinds["blk.0.attn_norm.weight"] == "F32"
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    there = {each.name: each for each in tensors}["blk.0.ffn_up.weight"]
    values = gguf.quants.dequantize(there.data, there.tensor_type)
    matrix = load_file(file)["model.layers.0.mlp.up_proj.weight"].to(dtype).float()
    assert torch.equal(torch.tensor(values), matrix)


def test_tokenizer_and_template_are_in_the_file(tmp_path):
    made = make_model(tmp_path / "model", "qwen2")
    edit(made / "generation_config.json", eos_token_id=[259, 257])
    write_gguf(made, tmp_path / "m.gguf")
    own, read = AutoTokenizer.from_pretrained(made), fields(tmp_path / "m.gguf")
    assert read["tokenizer.chat_template"] == own.chat_template
    assert read["tokenizer.ggml.model"] == "gpt2"
    assert read["tokenizer.ggml.pre"] == "qwen2"
    texts, kinds = read["tokenizer.ggml.tokens"], read["tokenizer.ggml.token_type"]
    named = dict(zip(texts, kinds, strict=True))
    assert (named["<|im_end|>"], named["<tools>"], named["a"], named["[PAD265]"]) == (3, 4, 1, 5)
    assert texts[own.eos_token_id] == "<|im_end|>"
    assert read["tokenizer.ggml.eos_token_id"] == own.eos_token_id == 259
    assert read["tokenizer.ggml.eot_token_id"] == 257
    assert read["tokenizer.ggml.padding_token_id"] == own.pad_token_id
    assert read["tokenizer.ggml.add_bos_token"] is False
    assert "tokenizer.ggml.bos_token_id" not in read


def test_a_tokenizer_with_merges_reads_back_as_the_same(tmp_path):
    shutil.copytree("examples/agl_demo/model", tmp_path / "model")
    write_gguf(tmp_path / "model", tmp_path / "m.gguf")
    own = AutoTokenizer.from_pretrained(tmp_path / "model")
    read = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    assert read(TEXT)["input_ids"] == own(TEXT)["input_ids"]
    assert fields(tmp_path / "m.gguf")["general.name"] == "m"


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (BYTES, "gpt-2"),
        (split(LLAMA3), "llama-bpe"),
        (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]), "smollm"),
    ],
)
def test_the_rule_that_splits_text_is_named(tmp_path, rule, name):
    tokenizer = llama_tokenizer(rule, bos=True)
    made = make_model(tmp_path / "model", "llama", tokenizer=tokenizer)
    write_gguf(made, tmp_path / "m.gguf")
    read = fields(tmp_path / "m.gguf")
    assert read["tokenizer.ggml.pre"] == name
    assert read["tokenizer.ggml.merges"] == ["t h"]
    assert read["tokenizer.ggml.add_bos_token"] is True
    assert read["tokenizer.ggml.bos_token_id"] == tokenizer.bos_token_id


def test_positions_of_llama_3_are_scaled_as_transformers_scales_them(tmp_path):
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    made = make_model(tmp_path / "model", "llama", rope_parameters=rope)
    write_gguf(made, tmp_path / "m.gguf")
    written = {each.name: each.data for each in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    config = LlamaConfig.from_pretrained(made)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500_000.0 ** (-torch.arange(0, 16, 2) / 16)
    found = torch.tensor(written["rope_freqs.weight"].copy())
    assert torch.allclose(plain / found, scaled, rtol=1e-5)
    assert (found.min(), found.max()) == (1, 8)


def test_positions_that_are_scaled_linearly_are_kept_so(tmp_path):
    rope = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    made = make_model(tmp_path / "model", "llama", rope_parameters=rope)
    write_gguf(made, tmp_path / "m.gguf")
    read = fields(tmp_path / "m.gguf")
    assert read["llama.rope.scaling.type"] == "linear"
    assert read["llama.rope.scaling.factor"] == 4.0


def test_older_configurations_are_read():
    old = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "intermediate_size": 8,
        "num_attention_heads": 4,
        "max_position_embeddings": 9,
        "rms_norm_eps": 1e-5,
        "vocab_size": 7,
        "rope_theta": 123.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }
    shape = shape_of(old, source="old")
    assert (shape.kv_heads, shape.head, shape.theta, shape.scale) == (4, 16, 123.0, 2.0)


def test_shards_are_read(tmp_path):
    made = make_model(tmp_path / "model", "qwen2")
    tensors = load_file(made / "model.safetensors")
    whole = logits(made)
    (made / "model.safetensors").unlink()
    names = sorted(tensors)
    for number, part in enumerate((names[:9], names[9:])):
        save_file({n: tensors[n] for n in part}, made / f"model-{number}.safetensors")
    write_gguf(made, tmp_path / "m.gguf")
    assert torch.equal(logits(tmp_path, gguf_file="m.gguf"), whole)


@pytest.mark.parametrize(
    ("file", "changes", "said"),
    [
        ("config.json", {"model_type": "gemma3"}, "type 'gemma3'.*llama, qwen2, qwen3"),
        ("config.json", {"use_sliding_window": True}, "use_sliding_window"),
        ("config.json", {"rope_parameters": {"rope_type": "yarn"}}, "by 'yarn'"),
        ("config.json", {"vocab_size": 200}, "has the id .* but the embedding has 200 rows"),
        ("config.json", {"num_hidden_layers": 3}, r"lack \['blk\.2\.attn_q'\]"),
        ("tokenizer.json", {"pre_tokenizer": {"type": "Metaspace"}}, "splits text by no rule"),
        ("tokenizer.json", {"pre_tokenizer": None}, "splits text by no rule"),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 0}}}, "has no merges"),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path, file, changes, said):
    made = make_model(tmp_path / "model", "qwen2")
    edit(made / file, **changes)
    with pytest.raises(ConfigError, match=said):
        write_gguf(made, tmp_path / "m.gguf")
    assert not list(tmp_path.glob("m.gguf*")), "a part of a file is left"


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json", "model.safetensors"])
def test_a_missing_or_damaged_file_is_named(tmp_path, file):
    made = make_model(tmp_path / "model", "qwen2")
    (made / file).write_bytes((made / file).read_bytes()[:300])
    with pytest.raises(ConfigError, match=f"{file}' cannot be read"):
        write_gguf(made, tmp_path / "m.gguf")
    (made / file).unlink()
    with pytest.raises(ConfigError, match=file if file.endswith("json") else "no weights in"):
        write_gguf(made, tmp_path / "m.gguf")


def test_weights_that_are_cut_off_or_of_another_dtype_are_named(tmp_path):
    made = make_model(tmp_path / "model", "qwen2")
    file = made / "model.safetensors"
    tensors, whole = load_file(file), file.read_bytes()
    file.write_bytes(whole[:-4])
    with pytest.raises(ConfigError, match="end before tensor"):
        write_gguf(made, tmp_path / "m.gguf")
    save_file({**tensors, "model.norm.weight": torch.zeros(64, dtype=torch.int8)}, file)
    with pytest.raises(ConfigError, match="dtype I8"):
        write_gguf(made, tmp_path / "m.gguf")
    save_file({**tensors, "model.layers.0.extra.weight": torch.zeros(2)}, file)
    with pytest.raises(ConfigError, match=r"'model\.layers\.0\.extra\.weight' and 0 more"):
        write_gguf(made, tmp_path / "m.gguf")


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    made = make_model(tmp_path / "model", "qwen2")
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match=r"Cannot write .*taken/m\.gguf"):
        write_gguf(made, tmp_path / "taken" / "m.gguf")


def test_an_unknown_dtype_and_a_missing_package_are_named(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="int4"):
        write_gguf(tmp_path, tmp_path / "m.gguf", dtype="int4")
    monkeypatch.setattr("agl_gguf._package.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"agl-core\[gguf\]"):
        write_gguf(tmp_path, tmp_path / "m.gguf")
