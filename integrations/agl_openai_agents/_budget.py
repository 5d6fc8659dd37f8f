"""A prompt budget as a ``call_model_input_filter`` of the SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from agents import Agent, FunctionTool, Handoff, RunContextWrapper, UserError, handoff
from agents.models.chatcmpl_converter import Converter
from agents.run import CallModelData, ModelInputData
from agl_budget import PromptBudget

Item = Mapping[str, Any]

_OWN_MESSAGE: Final = frozenset({"user", "system", "developer"})
_RESULT: Final = "function_call_output"


class PromptBudgetFilter:
    """Cuts the agents' prompts as `agl_budget.PromptBudget` does.

    ::

        Runner.run(agent, text, run_config=RunConfig(call_model_input_filter=PromptBudgetFilter(3000)))

    The history of the run is not changed, so each call is cut from the whole history. Outside a
    rollout the filter does nothing, unless the budget has its own ``count``.
    """

    def __init__(self, budget: PromptBudget | int | None = None) -> None:
        """Set a budget for every agent of a run.

        Args:
            budget: A `PromptBudget`, or a number of tokens. When None, the agent's number in the
                run's ``prompt_budgets``, else three quarters of the model's context.
        """
        self.budget = budget if isinstance(budget, PromptBudget) else PromptBudget(budget)

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        """Cut the input of one model call.

        Raises:
            ContextOverflowError: instructions, tools and the last turn alone exceed the budget.
            ConfigError: tokens cannot be counted, or no budget is known.
            EngineError: the gateway does not answer.
        """
        given = data.model_data
        sent: list[Any] = []
        owners: list[int] = []
        if given.instructions:
            sent.append({"role": "system", "content": given.instructions})
            owners.append(-1)
        groups = _groups(cast("Sequence[Item]", given.input))
        for position, group in enumerate(groups):
            for message in _messages(group):
                sent.append(message)
                owners.append(position)
        plan = await self.budget.aplan(sent, tools=await _tools(data))
        if not plan.cut:
            return given
        left: dict[int, Sequence[Item]] = {}
        for at, message in zip(plan.kept, plan.messages, strict=True):
            position = owners[at]
            if position >= 0:
                group = left.get(position, groups[position])
                changed = message is not sent[at]
                left[position] = _with_content(group, message["content"]) if changed else group
        items = [item for group in left.values() for item in group]
        return ModelInputData(input=cast("Any", items), instructions=given.instructions)


def _groups(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Group the items that are sent as one message: an answer, its reasoning, its tool calls."""
    groups: list[list[Item]] = []
    answer: list[Item] | None = None
    for item in items:
        if item.get("role") in _OWN_MESSAGE or item.get("type") == _RESULT:
            groups.append([item])
            answer = None
        elif answer is None or ("role" in item and any("role" in each for each in answer)):
            answer = [item]
            groups.append(answer)
        else:
            answer.append(item)
    return list(groups)


def _messages(group: Sequence[Item]) -> Sequence[Mapping[str, Any]]:
    """Convert items to chat completions form; an item of a hosted tool becomes an empty message."""
    try:
        found = Converter.items_to_messages(cast("Any", group))
    except UserError:
        found = []
    return cast("Any", found) or [{"role": "assistant", "content": ""}]


def _with_content(group: Sequence[Item], content: Any) -> Sequence[Item]:
    """Return the items of one message with the cut content."""
    return [
        _cut(item, content) if "content" in item or "output" in item else item for item in group
    ]


def _cut(item: Item, content: Any) -> Item:
    name = "output" if item.get("type") == _RESULT else "content"
    parts: Any = item[name]
    if isinstance(parts, str):
        return {**item, name: content}
    texts = [content] if isinstance(content, str) else [part.get("text") for part in content]
    return {**item, name: [_with_text(part, texts, at) for at, part in enumerate(parts)]}


def _with_text(part: Mapping[str, Any], texts: Sequence[str | None], at: int) -> Mapping[str, Any]:
    """Return a part with the text at its index; joined texts go into the first part."""
    if "text" not in part:
        return part
    return {**part, "text": (texts[at] if at < len(texts) else "") or ""}


async def _tools(data: CallModelData[Any]) -> list[Any]:
    """Return the agent's function tools and handoffs in OpenAI's form; hosted tools have none."""
    agent = data.agent
    tools = await agent.get_all_tools(RunContextWrapper(data.context))
    offered = [Converter.tool_to_openai(tool) for tool in tools if isinstance(tool, FunctionTool)]
    return [*offered, *(Converter.convert_handoff_tool(_handoff(each)) for each in agent.handoffs)]


def _handoff(target: Agent[Any] | Handoff[Any, Any]) -> Handoff[Any, Any]:
    return target if isinstance(target, Handoff) else handoff(target)
