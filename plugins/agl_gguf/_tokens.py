"""A tokenizer's tokens, merges and control tokens, as GGUF keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from agl_core.errors import ConfigError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Kinds of tokens, by GGUF's numbers."""
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: Final = {
    _CONTRACTIONS + r"\p{N}" + _REST: "qwen2",
    _CONTRACTIONS + r"\p{N}{1,3}" + _REST: "llama-bpe",
}
"""llama.cpp's name of a rule that splits text into words, by the rule."""


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What GGUF has of a tokenizer."""

    rule: str
    """llama.cpp's name of the rule that splits text into words."""
    texts: list[str]
    kinds: list[int]
    merges: list[str]
    ids: dict[str, int]
    """Of the tokens with a part of their own: bos, eos, eot, pad, unk."""
    add_bos: bool
    template: str | None


def tokens_of(directory: Path, *, rows: int, ends: list[int]) -> TokenizerParts:
    """Read the tokenizer in a model's directory.

    Args:
        directory: With ``tokenizer.json`` and ``tokenizer_config.json``.
        rows: Rows of the embedding; those without a token get one that is never used.
        ends: Ids that end an answer, by the model's own files.

    Raises:
        ConfigError: a file is missing, or the tokenizer is not a byte-level BPE that llama.cpp has.
    """
    tokenizer = read_json(directory / "tokenizer.json")
    settings = read_json(directory / "tokenizer_config.json")
    model = tokenizer["model"]
    rule = _rule_of(tokenizer, directory)
    texts = [f"[PAD{number}]" for number in range(rows)]
    kinds = [UNUSED] * rows
    known: dict[str, int] = {**model["vocab"]}
    for text, number in known.items():
        _place(texts, kinds, number, text, NORMAL, directory)
    for added in tokenizer.get("added_tokens") or ():
        kind = CONTROL if added.get("special") else USER_DEFINED
        _place(texts, kinds, added["id"], added["content"], kind, directory)
        known[added["content"]] = added["id"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges") or ()]
    if not merges:
        raise ConfigError(
            f"The tokenizer in {str(directory)!r} has no merges, and llama.cpp loads none without: "
            f"keep the Hugging Face export"
        )
    return TokenizerParts(
        rule=rule,
        texts=texts,
        kinds=kinds,
        merges=merges,
        ids=_ids(settings, known, ends),
        add_bos=_adds_bos(tokenizer),
        template=_template_of(directory, settings),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ConfigError: the file is missing or no JSON object.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{str(path)!r} cannot be read ({error}): give the directory of a model with a fast "
            f"tokenizer, as save_pretrained writes it"
        ) from error


def _place(
    texts: list[str], kinds: list[int], number: int, text: str, kind: int, directory: Path
) -> None:
    if number >= len(texts):
        raise ConfigError(
            f"Token {text!r} in {str(directory)!r} has the id {number}, but the embedding has "
            f"{len(texts)} rows: tokenizer and weights are of different models"
        )
    texts[number], kinds[number] = text, kind


def _rule_of(tokenizer: Mapping[str, Any], directory: Path) -> str:
    """Return llama.cpp's name of the rule that splits text into words before merging."""
    steps = list(_steps(tokenizer.get("pre_tokenizer")))
    last = steps[-1] if steps else {}
    if tokenizer["model"].get("type") == "BPE" and last.get("type") == "ByteLevel":
        if any(step.get("type") == "Digits" for step in steps):
            return "smollm"
        if last.get("use_regex", True):
            return "gpt-2"
        for step in steps:
            rule = _SPLITS.get((step.get("pattern") or {}).get("Regex", ""))
            if rule is not None:
                return rule
    raise ConfigError(
        f"The tokenizer in {str(directory)!r} splits text by no rule that is converted (byte-level "
        f"BPE as of GPT-2, Llama 3, Qwen2 and SmolLM): convert the Hugging Face export with "
        f"llama.cpp's convert_hf_to_gguf.py"
    )


def _steps(step: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if step is None:
        return
    if step.get("type") == "Sequence":
        for inner in step["pretokenizers"]:
            yield from _steps(inner)
    else:
        yield step


def _ids(settings: Mapping[str, Any], known: Mapping[str, int], ends: list[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in ("bos", "eos", "pad", "unk"):
        token: Any = settings.get(f"{part}_token")
        text: Any = token.get("content") if isinstance(token, dict) else token
        if text in known:
            found[part] = known[text]
    every = [*([found["eos"]] if "eos" in found else ()), *ends]
    return {**found, **dict(zip(("eos", "eot"), dict.fromkeys(every), strict=False))}


def _adds_bos(tokenizer: Mapping[str, Any]) -> bool:
    """Return whether the tokenizer puts a control token before every text."""
    post = tokenizer.get("post_processor") or {}
    for step in (post, *(post.get("processors") or ())):
        single = step.get("single") if step.get("type") == "TemplateProcessing" else None
        if single and "SpecialToken" in single[0]:
            return True
    return False


def _template_of(directory: Path, settings: Mapping[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    return template if isinstance(template, str) else None
