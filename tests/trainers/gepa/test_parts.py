"""The check of gepa's API, templates, options, and the plugin's contract."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import gepa
import pytest
from agl_gepa import GepaOptions
from agl_gepa._compat import check_gepa
from agl_gepa._templates import templates
from agl_testing.plugin_contract import PluginContract
from pydantic import ValidationError

from agl_core.errors import PluginError
from agl_core.interfaces import TunedPrompt


class TestPlugin(PluginContract):
    plugin = "agl_gepa.plugin"
    frameworks = ("gepa",)


def test_the_installed_gepa_has_what_is_used():
    check_gepa()


def test_another_api_is_an_error_that_says_what_lacks():
    @dataclass
    class Batch:
        outputs: list
        scores: list
        trajectories: list

    def optimize(seed_candidate, trainset, valset, adapter, logger, seed):
        raise AssertionError

    other = SimpleNamespace(optimize=optimize, EvaluationBatch=Batch)
    with pytest.raises(PluginError) as raised:
        check_gepa(other)
    message = str(raised.value)
    assert "optimize(stop_callbacks=)" in message
    assert "EvaluationBatch.num_metric_calls" in message
    assert "optimize(adapter=)" not in message
    assert "pip install" in message
    assert "[gepa]" in message


def test_prompts_without_placeholders_have_gepas_own_template():
    assert templates({"a": TunedPrompt(name="a", agents=("a",), text="x")}, "") is None


def test_placeholders_and_tools_are_named_to_the_editor():
    prompts = {
        "a": TunedPrompt(name="a", agents=("a",), text="{q}", placeholders=frozenset({"q", "p"})),
        "b": TunedPrompt(name="b", agents=("a",), text="adds numbers", tool="add"),
        "c": TunedPrompt(name="c", agents=("a",), text="x"),
    }
    found = templates(prompts, "")
    own = found["c"]
    assert found["a"].startswith(own)
    assert found["a"].endswith("{p}, {q}")
    assert found["b"].startswith(own)
    assert "'add'" in found["b"]
    assert "```" in own


def test_a_template_of_the_user_replaces_gepas():
    prompts = {"c": TunedPrompt(name="c", agents=("a",), text="x")}
    assert templates(prompts, "<curr_param> <side_info>") == {"c": "<curr_param> <side_info>"}


@pytest.mark.parametrize("template", ["only <curr_param>", "only <side_info>"])
def test_a_template_without_its_marks_is_refused(template):
    with pytest.raises(ValidationError, match="template lacks"):
        GepaOptions(template=template)


def test_the_defaults_are_gepas():
    import inspect

    theirs = {
        name: each.default for name, each in inspect.signature(gepa.optimize).parameters.items()
    }
    ours = GepaOptions()
    assert ours.parents == theirs["candidate_selection_strategy"]
    assert ours.update == theirs["module_selector"]
    assert ours.acceptance == theirs["acceptance_criterion"]
    assert ours.skip_perfect_score == theirs["skip_perfect_score"]
    assert ours.perfect_score == theirs["perfect_score"]
    assert ours.merge == theirs["use_merge"]
    assert ours.merges == theirs["max_merge_invocations"]
