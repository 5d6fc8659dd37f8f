"""An attempt's spans as a text tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from agl_reading import tokens_of

from agl_core import semconv
from agl_core.types import ModelCall, Reward, Span, SpanKind
from agl_core.types.json_text import json_text

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

_EXCERPT: Final = 72
_COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")
_NS_PER_S: Final = 1e9


@dataclass(slots=True)
class _Node:
    span: Span
    children: list[_Node] = field(default_factory=list["_Node"])


def add_spans(tree: Tree, spans: Sequence[Span], *, messages: bool = False) -> None:
    """Add merged spans to a tree; a span whose parent is missing becomes a child of the attempt.

    Args:
        messages: Also show the full prompt and answer of each call, and the full reason of each
            reward.
    """
    agents = list(dict.fromkeys(span.agent for span in spans if span.agent))
    colours = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(agents)}
    nodes = {span.id: _Node(span) for span in spans}
    roots: list[_Node] = []
    for span in spans:
        parent = nodes.get(span.parent_id or "")
        (parent.children if parent is not None else roots).append(nodes[span.id])
    stack = [(tree, node) for node in reversed(_reachable(roots, nodes))]
    while stack:
        branch, node = stack.pop()
        inner = branch.add(label(node.span, colours))
        if messages and node.span.call is not None:
            for line in spoken(node.span.call):
                inner.add(line)
        if messages and node.span.reward is not None and node.span.reward.why:
            inner.add(_said("why", node.span.reward.why))
        stack += [(inner, child) for child in reversed(node.children)]


def _reachable(roots: list[_Node], nodes: dict[str, _Node]) -> list[_Node]:
    """Return the roots, plus one span of every cycle of parents, so that every span is shown."""
    seen: set[str] = set()

    def visit(start: _Node) -> None:
        stack = [start]
        while stack:
            node = stack.pop()
            seen.add(node.span.id)
            node.children = [child for child in node.children if child.span.id not in seen]
            stack += node.children

    for root in roots:
        visit(root)
    for node in nodes.values():
        if node.span.id not in seen:
            roots.append(node)
            visit(node)
    return roots


def label(span: Span, colours: dict[str, str]) -> Text:
    """Return one line for a span."""
    from rich.text import Text  # noqa: PLC0415

    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{span.kind.value} ", style="dim")
    if span.reward is not None:
        text.append(reward_text(span.reward), style="bold")
        why = excerpt(printable(span.reward.why))
        return text.append(f": {why}", style="italic") if why else text
    if span.agent and span.kind is SpanKind.LLM:
        name = named(span.agent, span.call.alias if span.call is not None else "")
        text.append(f"{name} ", style=f"bold {colours.get(span.agent, '')}")
    if span.kind is not SpanKind.LLM or not span.agent:
        style = f"bold {colours.get(span.agent or '', '')}" if span.kind is SpanKind.AGENT else ""
        text.append(f"{span.name} ", style=style)
    if span.kind is SpanKind.LLM:
        text.append(_call(span.call))
    if span.end_ns > span.start_ns:
        text.append(f"{(span.end_ns - span.start_ns) / _NS_PER_S:.3f}s ", style="dim")
    if span.status == "error":
        text.append(f"error: {excerpt(span.error)}", style="red")
    elif span.kind is SpanKind.LLM and span.call is not None and span.call.choices:
        text.append(_answer(span.call), style="italic")
    elif semconv.GEN_AI_TOOL_ARGUMENTS in span.attributes:
        text.append(excerpt(str(span.attributes[semconv.GEN_AI_TOOL_ARGUMENTS])), style="italic")
    return text


def excerpt(text: str) -> str:
    """Return a text as one line, cut to a readable length."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _EXCERPT else f"{flat[: _EXCERPT - 3]}..."


def spoken(call: ModelCall) -> list[Text]:
    """Return the messages of a call, then its choices, each after its role."""
    said = [(str(each.get("role", "?")), _content(each), _calls(each)) for each in call.messages]
    for choice in call.choices:
        who = f"answer {choice.index}" if len(call.choices) > 1 else "answer"
        apart = {"thinking": choice.reasoning, "refusal": choice.refusal, "audio": choice.audio}
        said += [(f"{who}, {what}", text, []) for what, text in apart.items() if text]
        asked = _calls({"tool_calls": choice.tool_calls, "function_call": choice.function_call})
        if choice.text or asked or not (choice.refusal or choice.audio):
            said.append((who, choice.text, asked))
    lines: list[Text] = []
    for role, text, calls in said:
        line = _said(role, text)
        for tool in calls:
            line.append(printable(f"\n-> {_asked_tool(tool)}"))
        lines.append(line)
    return lines


def _said(role: str, text: str) -> Text:
    from rich.text import Text  # noqa: PLC0415

    line = Text(f"{printable(role)}: ", style="bold")
    return line.append(printable(text), style="not bold")


def _content(message: Mapping[str, Any]) -> str:
    """Return a message's text, or why it has none; other parts by their type."""
    content = message.get("content") or message.get("refusal")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return json_text(content)
    return " ".join(map(_part, cast("list[Any]", content)))


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    fields = cast("dict[str, Any]", part)
    text = fields.get("text", fields.get("refusal"))
    return text if isinstance(text, str) else f"[{fields.get('type', '?')}]"


def printable(text: str) -> str:
    """Escape control characters, which terminals interpret."""
    return "".join(
        char if char in "\n\t" or char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )


def _asked_tool(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    if not isinstance(function, dict):
        return json_text(tool)
    fields = cast("dict[str, Any]", function)
    return f"{fields.get('name', '?')}({fields.get('arguments', '')})"


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message's tool calls that have the wire's form, or the older form."""
    given, older = message.get("tool_calls"), message.get("function_call")
    calls = cast("list[Any]", given) if isinstance(given, list) else []
    found: list[dict[str, Any]] = [each for each in calls if isinstance(each, dict)]
    return [*found, {"function": older}] if isinstance(older, dict) else found


def _call(call: ModelCall | None) -> str:
    if call is None:
        return "(not seen by the gateway) "
    prompt, sampled = tokens_of(call)
    parts = [token_counts(prompt, sampled)]
    parts += [reason for reason in {choice.finish_reason for choice in call.choices} if reason]
    parts += [f"policy {call.policy} v{call.policy_version}"] if call.policy else []
    parts += ["superseded"] if call.superseded else []
    parts += [] if call.complete or call.superseded else ["incomplete"]
    parts += [f"{call.status_code} {excerpt(call.error)}"] if call.error else []
    return ", ".join(parts) + " "


def _answer(call: ModelCall) -> str:
    first = call.choices[0]
    tools = [str(tool.get("function", {}).get("name", "?")) for tool in first.tool_calls]
    if tools:
        return f"-> {', '.join(tools)}"
    return f'"{excerpt(first.text)}"'


def reward_text(reward: Reward) -> str:
    """Return one line for a reward, without its reason."""
    target = reward.target
    aim = "attempt"
    if target.call is not None:
        aim = f"call {target.call}" + (
            f" choice {target.choice}" if target.choice is not None else ""
        )
    elif target.agent_run is not None:
        aim = f"agent run {target.agent_run}"
        aim += f" of {target.agent}" if target.agent is not None else ""
    elif target.agent is not None:
        aim = f"agent {target.agent}"
    source = f" by {reward.source}" if reward.source else ""
    return f"{reward.channel} {reward.value:+.3f} for {aim}{source}"


def named(agent: str, alias: str) -> str:
    """Return an agent's name with its alias, if it has one."""
    return f"{agent} ({alias})" if alias else agent


def token_counts(prompt: int, sampled: int) -> str:
    """Return the numbers of recorded tokens; those of untrained agents are not recorded."""
    return f"{prompt}+{sampled} tokens" if prompt or sampled else "tokens not recorded"
