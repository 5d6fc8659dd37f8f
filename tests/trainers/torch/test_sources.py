"""Models are looked at before PyTorch is imported."""

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
import agl_core as agl
try:
    agl.train(print, [1], agents=["a"], model=sys.argv[1], config={"directory": sys.argv[2]})
except agl.ConfigError as error:
    print(error)
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("model", ["./nowhere", "/no/such/model", "{tmp}"])
def test_a_wrong_path_is_refused_before_torch_is_imported(tmp_path, model):
    """G8: not after a minute."""
    path = model.format(tmp=tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, path, str(tmp_path / "runs")],
        capture_output=True,
        check=True,
        cwd=tmp_path,
        text=True,
    )

    message, imported = done.stdout.splitlines()
    assert message.startswith(("Model path", "Model directory"))
    assert message.endswith(("check 'model' of the run and its policies", "is it a model's?"))
    assert imported == "False"
