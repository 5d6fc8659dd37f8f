"""The page about verl says what the code does."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from agl_verl import _config_checks as config_checks
from agl_verl import _estimators as estimators
from agl_verl import _loss as loss
from agl_verl._compat import SUPPORTED
from packaging.requirements import Requirement

PAGE = (Path(__file__).parents[3] / "docs" / "verl.md").read_text(encoding="utf-8")


def table(head):
    """Every name in the first column of a table, and the rest of its row."""
    lines = PAGE[PAGE.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    found = [re.fullmatch(r"\| (.+?) \| (.*) \|", line) for line in lines]
    assert all(found), lines
    return {name: each[2] for each in found for name in re.findall(r"`([^`]+)`", each[1])}


def names(text):
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("refused", [config_checks._OURS, config_checks._FIXED])
def test_every_option_that_is_refused_is_listed_with_what_to_use(refused):
    listed = table("Refused under `[verl]`")
    for path, said in refused.items():
        if path == "trainer.device":
            assert "`engine.device`" in PAGE
            continue
        rest = listed[path.partition(".")[2]]
        if refused is config_checks._OURS:
            assert set(said.split(" and ")) <= set(names(rest)), path
        else:
            assert rest.startswith("nothing:"), path


def test_every_section_that_is_refused_is_listed():
    first = PAGE[PAGE.index("| Refused under") :].split("\n\n")[0]
    assert set(re.findall(r"\*\*`(\w+)`\*\*", first)) >= set(config_checks._ELSEWHERE)


def test_every_estimator_is_listed_as_usable_or_refused():
    listed = table("`estimator`")
    refused = {name for name, rest in listed.items() if rest.startswith("refused:")}
    assert set(listed) == set(estimators.USABLE) | set(estimators._UNUSABLE)
    assert refused == set(estimators._UNUSABLE)


def test_every_policy_loss_is_listed_with_the_options_that_it_reads():
    listed = table("`policy_loss`")
    assert set(listed) == set(loss._READ) | set(loss._UNUSABLE)
    for name, options in loss._READ.items():
        assert set(names(listed[name])) - {"seq-mean-token-mean"} == set(options), name
    for name in loss._UNUSABLE:
        assert listed[name].startswith("refused:")


def test_the_versions_of_verl_are_those_that_are_supported():
    assert "verl 0.9.1 or later, before 0.10" in PAGE
    assert "0.9.1" in SUPPORTED
    assert "0.9.0" not in SUPPORTED
    assert "0.10" not in SUPPORTED


def test_versions_on_a_gpu_are_those_that_verl_asks_for():
    """H9: with the driver that CUDA 13, of vLLM's torch, needs."""
    asked = {
        each.name: {pin.version for pin in each.specifier}
        for each in map(Requirement, metadata.requires("verl") or ())
        for extra in ("vllm", "cupy-cu130")
        if each.marker is not None and each.marker.evaluate({"extra": extra}) and each.specifier
    }
    head, _, *rows = PAGE[PAGE.index("| On a GPU |") :].split("\n\n")[0].splitlines()
    assert metadata.version("verl") in head
    listed = "\n".join(rows)
    for package, named in (("vllm", "vLLM"), ("torch", "torch"), ("transformers", "transformers")):
        (version,) = asked[package]
        assert f"| {named} | {version}" in listed
    assert f"cupy-cuda13x {min(asked['cupy-cuda13x'])} |" in listed
    assert re.search(
        r"built for CUDA 13\.0 \|.*\| NVIDIA driver \| 580 or later", listed, re.DOTALL
    )
