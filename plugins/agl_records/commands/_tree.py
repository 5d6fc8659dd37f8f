"""An attempt's spans as a text tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from agl_reading import tokens_of

from agl_core import semconv
from agl_core.thinking import without_thinking
from agl_core.types import ModelCall, Reward, Span, SpanKind
from agl_records.commands._messages import Detail, attributes_of, prompt_cut, spoken
from agl_records.commands._printing import Said, excerpt, printable

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

_COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")
_NS_PER_S: Final = 1e9


@dataclass(slots=True)
class _Node:
    span: Span
    children: list[_Node] = field(default_factory=list["_Node"])


def add_spans(tree: Tree, spans: Sequence[Span], detail: Detail) -> None:
    """Add merged spans to a tree; a span whose parent is missing becomes a child of the attempt."""
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
        for line in _said(node.span, detail) if detail.messages else ():
            inner.add(line)
        stack += [(inner, child) for child in reversed(node.children)]


def _said(span: Span, detail: Detail) -> Iterator[Said]:
    """Yield the full texts of a span: of its call, its tool, its error, its reward."""
    if span.call is not None:
        yield Said("call", span.call.id, style="dim")
        yield from spoken(span.call, thinking=detail.thinking)
    yield from attributes_of(span)
    if span.reward is not None and span.reward.why:
        yield Said("why", span.reward.why)


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
        why = excerpt(span.reward.why)
        return text.append(f": {why}", style="italic") if why else text
    if span.agent and span.kind is SpanKind.LLM:
        name = named(span.agent, span.call.alias if span.call is not None else "")
        text.append(f"{name} ", style=f"bold {colours.get(span.agent, '')}")
    if span.kind is not SpanKind.LLM or not span.agent:
        style = f"bold {colours.get(span.agent or '', '')}" if span.kind is SpanKind.AGENT else ""
        text.append(f"{printable(span.name)} ", style=style)
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
    else:
        text.append(prompt_cut(span), style="yellow")
    return text


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
    return f'"{excerpt(without_thinking(first.text, tags=call.thinking_tags))}"'


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
    return printable(f"{reward.channel} {reward.value:+.3f} for {aim}{source}")


def named(agent: str, alias: str) -> str:
    """Return an agent's name with its alias, if it has one."""
    return printable(f"{agent} ({alias})" if alias else agent)


def token_counts(prompt: int, sampled: int) -> str:
    """Return the numbers of recorded tokens; those of untrained agents are not recorded."""
    return f"{prompt}+{sampled} tokens" if prompt or sampled else "tokens not recorded"
