"""The GGUF file of a model's directory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from agl_core.errors import ConfigError
from agl_gguf._package import require_gguf
from agl_gguf._safetensors import StoredTensor, stored_tensors
from agl_gguf._shape import ROPE_FACTORS, Architecture, shape_of
from agl_gguf._tokens import TokenizerParts, read_json, tokens_of

DTYPES: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""The format's name of each dtype that matrices can have."""
_FILE_TYPES: Final = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "BF16": "MOSTLY_BF16"}


def write_gguf(directory: Path, file: Path, *, dtype: str | None = None) -> None:
    """Write weights, tokenizer and chat template of a Hugging Face directory to one GGUF file.

    Vectors, such as norms and biases, are float32, as llama.cpp needs them. One tensor at a time is
    in memory.

    Args:
        directory: A model of type llama, qwen2 or qwen3, with safetensors and ``tokenizer.json``.
        file: Overwritten; its directory is created if missing.
        dtype: Of the matrices, one of `DTYPES`; None: that of the embedding.

    Raises:
        ConfigError: the model or its tokenizer is of a kind that is not converted, or a file is
            missing, damaged or cannot be written.
        MissingExtraError: the package ``gguf`` is not installed.
    """
    require_gguf()
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}, but GGUF is written in {', '.join(DTYPES)}")
    config = read_json(directory / "config.json")
    shape = shape_of(config, source=str(directory))
    tokens = tokens_of(directory, rows=shape.vocabulary, ends=_ends(config, directory))
    tensors = _named(stored_tensors(directory), shape, config, directory)
    kind = DTYPES[dtype] if dtype else tensors["token_embd.weight"].dtype
    partial = file.with_name(f"{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(partial, shape, tokens, tensors, kind=kind, name=file.stem)
        partial.replace(file)
    except OSError as error:
        raise ConfigError(f"Cannot write {str(file)!r}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _ends(config: dict[str, Any], directory: Path) -> list[int]:
    """Return the ids that end an answer, by the model's own files."""
    file = directory / "generation_config.json"
    found: list[int] = []
    for holder in (read_json(file) if file.is_file() else {}, config):
        value = holder.get("eos_token_id")
        found += value if isinstance(value, list) else [] if value is None else [value]
    return found


def _named(
    stored: dict[str, StoredTensor], shape: Architecture, config: dict[str, Any], directory: Path
) -> dict[str, StoredTensor]:
    """Return the tensors by GGUF's names; without an output head that is the embedding."""
    tied = bool(config.get("tie_word_embeddings"))
    named: dict[str, StoredTensor] = {}
    unknown: list[str] = []
    for name, tensor in stored.items():
        if (target := shape.name_of(name)) is None:
            unknown.append(name)
        elif not (tied and name.startswith("lm_head.")):
            named[target] = tensor
    if unknown:
        raise ConfigError(
            f"{str(directory)!r} has the tensor {unknown[0]!r} and {len(unknown) - 1} more without a "
            f"name in GGUF: merge adapters first, and convert other models with llama.cpp's "
            f"convert_hf_to_gguf.py"
        )
    needed = ["token_embd", "output_norm", *(f"blk.{n}.attn_q" for n in range(shape.layers))]
    if lacking := [name for name in needed if f"{name}.weight" not in named]:
        raise ConfigError(f"The weights in {str(directory)!r} lack {lacking}: copy them again")
    return named


def _write(
    file: Path,
    shape: Architecture,
    tokens: TokenizerParts,
    tensors: dict[str, StoredTensor],
    *,
    kind: str,
    name: str,
) -> None:
    import gguf  # noqa: PLC0415

    writer = gguf.GGUFWriter(file, shape.architecture)
    try:
        _add_shape(writer, shape)
        _add_tokens(writer, tokens)
        writer.add_name(name)
        writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[kind]])
        factors = shape.rope_factors()
        if factors is not None:
            writer.add_tensor_info(ROPE_FACTORS, factors.shape, factors.dtype, factors.nbytes)
        kinds = {name: kind if len(each.shape) > 1 else "F32" for name, each in tensors.items()}
        for target, each in tensors.items():
            _announce(writer, target, each.shape, kinds[target])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if factors is not None:
            writer.write_tensor_data(factors)
        for target, each in tensors.items():
            values = shape.reordered(target, each.read())
            writer.write_tensor_data(_encoded(values, kinds[target]))
    finally:
        writer.close()


def _announce(writer: Any, name: str, shape: tuple[int, ...], kind: str) -> None:
    import gguf  # noqa: PLC0415

    count = int(np.prod(shape, dtype=np.int64))
    dtype = np.dtype(np.float32 if kind == "F32" else np.float16)
    raw = gguf.GGMLQuantizationType[kind]
    writer.add_tensor_info(name, shape, dtype, count * dtype.itemsize, raw_dtype=raw)


def _encoded(values: Any, kind: str) -> Any:
    """Return values as they stand in the file; to bfloat16, rounded to the nearest."""
    import gguf  # noqa: PLC0415

    if kind != "BF16":
        return values.astype(np.float16 if kind == "F16" else np.float32, copy=False)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)


def _add_shape(writer: Any, shape: Architecture) -> None:
    import gguf  # noqa: PLC0415

    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_freq_base(shape.theta)
    writer.add_rope_dimension_count(shape.head)
    writer.add_vocab_size(shape.vocabulary)
    if shape.scale is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(shape.scale)


def _add_tokens(writer: Any, tokens: TokenizerParts) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokens.rule)
    writer.add_token_list(tokens.texts)
    writer.add_token_types(tokens.kinds)
    writer.add_token_merges(tokens.merges)
    for part, number in tokens.ids.items():
        getattr(writer, f"add_{part}_token_id")(number)
    writer.add_add_bos_token(tokens.add_bos)
    if tokens.template is not None:
        writer.add_chat_template(tokens.template)
