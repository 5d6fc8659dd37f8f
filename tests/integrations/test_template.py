"""The template renders to an integration that keeps the whole contract."""

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).parents[2] / "integrations" / "_template"


@pytest.fixture(scope="module")
def render():
    spec = spec_from_file_location("render", TEMPLATE / "render.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.render


def test_the_rendered_integration_passes_its_contract(render, tmp_path):
    written = render("open_house", tmp_path / "packages", tmp_path / "tests")
    assert (tmp_path / "packages" / "agl_open_house" / "plugin.py") in written
    for path in written:
        assert "template" not in path.read_text(encoding="utf-8").lower()
    root = TEMPLATE.parents[1]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", str(root / "pyproject.toml")),
            *("-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path / "tests")),
        ],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'packages'}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_nothing_is_overwritten(render, tmp_path):
    render("mine", tmp_path, tmp_path)
    with pytest.raises(FileExistsError):
        render("mine", tmp_path, tmp_path)


@pytest.mark.parametrize("name", ["", "My", "my-framework", "1st"])
def test_a_name_that_cannot_be_imported_is_refused(render, tmp_path, name):
    with pytest.raises(ValueError, match="lower-case identifier"):
        render(name, tmp_path, tmp_path)
