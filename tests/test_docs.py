"""The documentation is true: generated parts are fresh, code compiles, names and links exist."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from agl_tracking import step_numbers

import agl_core as agl
from agl_core import semconv
from agl_core._builtin import load_plugins
from agl_core.app.parts import engine_name
from agl_core.config import RunConfig, algorithm_phases, prompt_phases
from agl_core.config.loader import check_options, resolve
from agl_core.config.text import read_config
from agl_core.interfaces import TrackedRun
from agl_core.plugins._manager import hook_names
from agl_core.types import StepReport
from tools import pages

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "examples").glob("*/README.md"),
        *(ROOT / "integrations").glob("*/README.md"),
        *(ROOT / "plugins").glob("*/README.md"),
    ]
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PROBLEM = re.compile(r"(?:Problem\(\s*|: \()(\d{3}), \"([a-z_]+)\"")
COUNTED = re.compile(r"(?:losses\.add|_count|losses\[)\(?\s*f?\"([a-z_]+)")


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agl_docs_generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def blocks(language: str) -> list[Any]:
    """Every code block of a language, named after its page."""
    found = [
        pytest.param(code, id=f"{page.relative_to(ROOT).as_posix()}-{number}")
        for page in PAGES
        for number, (named, code) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
        if named == language
    ]
    assert found, f"no page has a block of {language}"
    return found


def test_generated_parts_are_fresh() -> None:
    assert load_generator().main(["--check"]) == 0


def test_a_stale_part_is_noticed_and_rewritten(tmp_path: Path, monkeypatch: Any) -> None:
    generator = load_generator()
    page = tmp_path / "README.md"
    page.write_text("<!-- generated:errors -->\nold\n<!-- /generated -->\n", encoding="utf-8")
    monkeypatch.setattr(generator, "pages", lambda: [page])
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    assert generator.main(["--check"]) == 1
    assert "old" in page.read_text(encoding="utf-8")
    assert generator.main([]) == 0
    assert "AglError" in page.read_text(encoding="utf-8")
    assert generator.main(["--check"]) == 0


@pytest.mark.parametrize("code", blocks("python"))
def test_python_compiles(code: str) -> None:
    compile(code, "<documentation>", "exec")


@pytest.mark.parametrize("code", blocks("diff"))
def test_both_sides_of_a_diff_compile(code: str) -> None:
    lines = code.splitlines()
    for gone in "+-":
        side = "\n".join(line[2:] for line in lines if not line.startswith(gone))
        compile(side, "<documentation>", "exec")


@pytest.mark.parametrize("code", blocks("toml"))
def test_configurations_are_valid(code: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(code, encoding="utf-8")
    data = read_config(file)
    if "project" in data:
        return
    check_config(resolve(data))


def test_commands_fit_the_file_that_the_pages_show(tmp_path: Path) -> None:
    """What ``--set`` changes, too, must leave a configuration that its plugins accept."""
    shown = [ROOT / "docs" / name for name in ("train.md", "results.md")]
    found = [block for page in shown for block in BLOCK.findall(page.read_text(encoding="utf-8"))]
    file = tmp_path / "run.toml"
    file.write_text(next(code for language, code in found if language == "toml"), encoding="utf-8")
    shell = "".join(code for language, code in found if language == "bash")
    lines = re.findall(r"^agl \w+ run\.toml.*", shell, re.MULTILINE)
    assert lines
    for line in lines:
        check_config(resolve(read_config(file), re.findall(r"--set (\S+)", line)))


def check_config(config: RunConfig) -> None:
    """Refuse options that the plugins named beside them do not have."""
    plugins = load_generator().own_plugins()
    named = [("engines", engine_name(config, plugins), config.engine)]
    phases = [phase.algorithm for phase in algorithm_phases(config).values()]
    named += [("algorithms", algorithm.name, algorithm) for algorithm in phases]
    named += [("optimizers", phase.optimizer, phase) for phase in prompt_phases(config).values()]
    named += [("rewards", reward.name, reward) for reward in config.rewards]
    named += [("trackers", tracker.name, tracker) for tracker in config.trackers]
    for kind, name, section in named:
        registry = plugins.registry(kind)
        # A reward may also be the user's own function, by its import path or by a plugin's name.
        if kind != "rewards" or name in registry:
            check_options(section, registry.options_model(name), where=kind)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_public_names_exist(page: Path) -> None:
    """Attributes of spans also begin with ``agl.``, but are no names of the package."""
    text = page.read_text(encoding="utf-8")
    values = [value for value in vars(semconv).values() if isinstance(value, str)]
    for attribute in sorted(values, key=len, reverse=True):
        text = text.replace(f"`{attribute}`", "")
    used = set(re.findall(r"(?<![\w./-])agl\.([A-Za-z_]\w*)", text))
    assert used <= set(agl.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), link
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), link


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", text, re.MULTILINE)
    made = {*pages.sources().values(), "changelog.md", "api/index.md"}
    made |= {f"api/{face}.md" for face in pages.FACES}
    assert sorted(listed) == sorted(made), "mkdocs.yml lists the pages under `nav`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    used = set(re.findall(r"(?:^|`|/bin/)agl ([a-z]+(?:-[a-z]+)*)", text, re.MULTILINE))
    commands = load_generator().own_plugins().registry("commands").names()
    assert used <= set(commands)


@pytest.mark.parametrize("hook", hook_names())
def test_hooks_are_documented_and_tested(hook: str) -> None:
    assert f"### `{hook}(" in (ROOT / "docs/hooks.md").read_text(encoding="utf-8")
    tests = [file for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__)]
    assert any(re.search(rf"\b{hook}\b", file.read_text(encoding="utf-8")) for file in tests)


def test_counted_losses_are_documented() -> None:
    """A cause with a part that varies is written with that part in angle brackets."""
    text = (ROOT / "docs/capture.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| (`[a-z_<>`, ]+) \|", text, re.MULTILINE))
    names = {name.partition("<")[0] for cell in documented for name in re.findall(r"`(.+?)`", cell)}
    counted: set[str] = set()
    for file in (ROOT / "agl_core").rglob("*.py"):
        counted |= set(COUNTED.findall(file.read_text(encoding="utf-8")))
    assert counted
    for cause in counted:
        varies = cause.endswith("_")
        assert any(name.startswith(cause) if varies else name == cause for name in names), cause


def test_codes_of_the_gateway_are_documented() -> None:
    documented = (ROOT / "docs/http.md").read_text(encoding="utf-8")
    told: set[tuple[str, str]] = set()
    for file in (ROOT / "agl_core/gateway").rglob("*.py"):
        told |= set(PROBLEM.findall(file.read_text(encoding="utf-8")))
    assert told
    # The client that would be told so has left.
    for status, code in sorted(told - {("499", "client_closed")}):
        assert re.search(rf"^\| {status} \|.*`{code}`", documented, re.MULTILINE), (status, code)


def test_the_plugin_of_the_documentation_works(tmp_path: Path) -> None:
    text = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    code = next(code for language, code in BLOCK.findall(text) if '"""mine.py' in code)
    file = tmp_path / "mine.py"
    file.write_text(code, encoding="utf-8")
    rewards = load_plugins([file]).registry("rewards")
    reward = rewards.create("brevity", words=2)
    assert reward(None, "two words", None) == 1.0
    assert reward(None, "three words here", None) == 0.0


def test_the_tracker_of_the_documentation_works(tmp_path: Path, capsys: Any) -> None:
    text = (ROOT / "docs/trackers.md").read_text(encoding="utf-8")
    code = next(code for language, code in BLOCK.findall(text) if '"""mine.py' in code)
    file = tmp_path / "mine.py"
    file.write_text(code, encoding="utf-8")
    tracker = load_plugins([file]).registry("trackers").create("mine", None)
    tracker.start(TrackedRun(name="run", directory=tmp_path, config={}))
    tracker.step(StepReport(step=1, steps=1, reward=0.5))
    tracker.finish(OSError("no space left"))
    assert capsys.readouterr().out.splitlines() == [
        "0 {}",
        f"1 {step_numbers(StepReport(step=1, steps=1, reward=0.5))}",
        "1 {'final/failed': 1.0}",
    ]
