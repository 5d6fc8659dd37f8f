"""Each rule of PluginContract fails on a plugin that breaks it."""

from __future__ import annotations

from itertools import count
from textwrap import dedent

import pytest
from agl_testing.plugin_contract import GRPO_LOSS, PluginContract

from agl_core.training.algorithms import GRPO, GRPOOptions

_SOUND = """
    from agl_core.plugins import hookimpl

    @hookimpl
    def agl_register_rewards(register):
        register(
            "mine", f"{__name__}:Mine", config=f"{__name__}:Options", summary="Counts my words"
        )

    @hookimpl
    def agl_register_commands(register):
        register("mine", f"{__name__}:command", summary="say something")

    @hookimpl
    def agl_register_losses(register):
        register(
            "mine.policy_gradient",
            f"{__name__}:Loss",
            config=f"{__name__}:LossOptions",
            summary="Clipped",
        )

    @hookimpl
    def agl_run_finished(report):
        pass

    def __getattr__(name):
        import click
        from pydantic import BaseModel, ConfigDict

        class Inner(BaseModel):
            model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
            depth: int = 1
            '''How deep.'''

        class Options(BaseModel):
            model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
            words: int = 3
            '''Most words.'''
            inner: list[Inner] | None = None
            '''More of it.'''

        class LossOptions(BaseModel):
            model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
            ratio: str = "token"
            '''One for each token.'''
            clip_low: float = 0.2
            '''Below 1.'''
            clip_high: float = 0.2
            '''Above 1.'''

        class Loss:
            def __init__(self, options):
                self.options = options

        offered = {"Mine": object, "Loss": Loss, "LossOptions": LossOptions}

        @click.command()
        def command():
            pass

        return {**offered, "Options": Options, "command": command}[name]
"""
_IMPORT = "from agl_core.plugins import hookimpl\n"
_HOOK = "    @hookimpl\n    def agl_run_finished"

_LOSS = "its_policy_gradient_takes_the_options_of_grpo"

_CASES = [
    (_LOSS, "clip_high: float", "clip_top: float"),
    (_LOSS, 'config=f"{__name__}:LossOptions",', ""),
    ("it_loads_and_offers_or_observes_something", "@hookimpl", "#"),
    ("it_loads_and_offers_or_observes_something", "def agl_run_finished", "async def agl_run_x"),
    ("it_loads_and_offers_or_observes_something", "(report)", "(telegram)"),
    ("every_function_named_like_a_hook_is_one", _HOOK, "    def agl_run_finished"),
    ("every_function_named_like_a_hook_is_one", "agl_run_finished", "agl_run_finishd"),
    ("loading_it_imports_no_framework", _IMPORT, f"{_IMPORT}    import framework_of_mine\n"),
    ("loading_it_imports_no_framework", "        register(", "        import framework_of_mine; ("),
    ("loading_it_imports_no_framework", _IMPORT, f"{_IMPORT}    raise OSError\n"),
    ("every_target_can_be_had_or_names_its_pip_line", ":Mine", ":Gone"),
    ("every_target_can_be_had_or_names_its_pip_line", "{__name__}:Mine", "nowhere_at_all.x:Mine"),
    ("every_target_can_be_had_or_names_its_pip_line", '"Mine": object', '"Mine": "a word"'),
    ("every_target_can_be_had_or_names_its_pip_line", '"command": command', '"command": print'),
    (
        "every_target_can_be_had_or_names_its_pip_line",
        '"mine", f"{__name__}:command"',
        '"train.--mine", f"{__name__}:Mine"',
    ),
    ("every_offer_has_a_summary_of_one_line", "Counts my words", " "),
    ("every_offer_has_a_summary_of_one_line", "say something", r"say\nsomething"),
    ("every_option_is_documented", "'''Most words.'''", "pass"),
    ("every_option_is_documented", "'''How deep.'''", "pass"),
    ("every_option_is_documented", ":Options", ":Gone"),
    ("unknown_options_are_refused", 'ConfigDict(extra="forbid", ', "ConfigDict("),
    ("unknown_options_are_refused", 'extra="forbid"', 'extra="allow"'),
]
"""Rule, text of the sound plugin, and what stands there in the broken one."""

_NUMBERS = count()


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Write a plugin and give the contract for it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "framework_of_mine.py").write_text("")

    def make(text):
        name = f"plugin_of_mine_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(dedent(text), encoding="utf-8")

        class Suite(PluginContract):
            plugin = name
            frameworks = ("framework_of_mine",)

        return Suite()

    return make


@pytest.mark.parametrize(("rule", "sound", "broken"), _CASES)
def test_a_broken_plugin_is_caught(suite, rule, sound, broken):
    assert sound in _SOUND
    getattr(suite(_SOUND), f"test_{rule}")()
    with pytest.raises(AssertionError):
        getattr(suite(_SOUND.replace(sound, broken)), f"test_{rule}")()


def test_every_rule_has_its_broken_plugin():
    rules = {name[5:] for name in vars(PluginContract) if name.startswith("test_")}
    assert rules == {rule for rule, _, _ in _CASES}


def test_the_options_of_grpo_are_those_of_the_contract():
    assert GRPO(GRPOOptions()).loss_options == GRPO_LOSS


def test_a_missing_framework_is_no_fault(suite):
    lacking = suite(_SOUND.replace("    import click\n", "    import framework_of_yours\n"))
    lacking.test_every_target_can_be_had_or_names_its_pip_line()
    lacking.test_every_option_is_documented()
    lacking.test_its_policy_gradient_takes_the_options_of_grpo()
