"""What docs/vllm.md tells to type is what these tests run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.extras.vllm.vllm_server import COMMAND, ENVIRONMENT, FLAGS

PAGE = Path(__file__).parents[3] / "docs" / "vllm.md"


def test_the_server_of_the_page_is_the_one_that_is_tested() -> None:
    text = PAGE.read_text(encoding="utf-8")
    block = re.search(r"```bash\n(.*?)```", text, re.DOTALL)
    assert block is not None
    settings, command = block[1].split("python ", 1)
    assert command.startswith(" ".join(COMMAND))
    assert set(re.findall(r"--[a-z-]+", command)) - {"--model", "--port"} <= FLAGS.keys()
    assert set(re.findall(r"(\w+=\w+)", settings)) <= {f"{k}={v}" for k, v in ENVIRONMENT.items()}
    for flag in set(FLAGS) - {"--served-model-name", "--host"}:
        assert flag in text, flag
