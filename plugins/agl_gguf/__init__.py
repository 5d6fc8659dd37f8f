"""Writes a Hugging Face model as a GGUF file, which llama.cpp loads. It registers no hooks.

Reading order: `_write` (the file), `_shape` (the model's numbers, and the names of its tensors),
`_tokens` (the tokenizer), `_safetensors` (reading the weights without torch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_gguf._package import require_gguf as require_gguf
    from agl_gguf._write import write_gguf as write_gguf
else:
    __getattr__, __dir__, __all__ = late(__name__)  # numpy is imported when it is needed
