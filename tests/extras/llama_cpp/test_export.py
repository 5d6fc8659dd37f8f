"""`agl export --format gguf` in llama.cpp: the tokens and the answer of `agl serve`."""

from __future__ import annotations

import pytest

llama_cpp = pytest.importorskip("llama_cpp")

from transformers import AutoTokenizer  # noqa: E402

from tests.exporting import COUNT, QUESTION, exported, served_ids, trained_run  # noqa: E402
from tests.plugins.gguf.conftest import BYTES, llama_tokenizer, make_model  # noqa: E402

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|turn|>' + m.role + '\\n' + m.content + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}"
)


def base(directory, kind):
    """Shapes whose heads have together the model's width, as llama.cpp needs of Qwen2."""
    tokenizer = llama_tokenizer(BYTES, bos=True) if kind == "llama" else None
    if tokenizer is not None:
        tokenizer.chat_template = TEMPLATE
    return str(make_model(directory, kind, tokenizer=tokenizer))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
async def test_llama_cpp_gives_the_ids_that_are_served(tmp_path, kind):
    """Issue 15: in float32, 32 ids at temperature 0."""
    model = base(tmp_path / "model", kind)
    checkpoint = await trained_run(tmp_path / "run", model)
    served = await served_ids(checkpoint)
    file = await exported(checkpoint, tmp_path / "out", "gguf")
    loaded = llama_cpp.Llama(str(file), n_ctx=256, n_threads=1, verbose=False)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=False
        )
        own = loaded.tokenize(text.encode(), add_bos=False, special=True)
        assert own == served.prompt, "llama.cpp has another tokenizer"
        answer = loaded.generate(served.prompt, temp=0.0, top_k=1, repeat_penalty=1.0)
        assert [token for token, _ in zip(answer, range(COUNT), strict=False)] == served.answer
        assert loaded.metadata["tokenizer.chat_template"] == tokenizer.chat_template
        assert loaded.token_eos() == tokenizer.eos_token_id
    finally:
        loaded.close()
