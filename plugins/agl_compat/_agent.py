"""`Agent`: a system prompt and tools around one model, as an agent program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from pydantic import BaseModel, create_model

import agl_core
from agl_compat._client import chat
from agl_compat._names import renamed
from agl_core.errors import ConfigError
from agl_core.tracing import active, agent_scope
from agl_core.types import PromptTemplate, Task

_MODEL: Final = "auto"


class Agent:
    """An agent that answers with one model and calls Python functions as its tools.

    It is an agent program: `agl_core.train` takes it, and its calls belong to the agent `name`.
    """

    def __init__(
        self,
        name: str,
        system_prompt: str = "",
        tools: Sequence[Callable[..., Any]] = (),
        *,
        model: str = _MODEL,
        max_turns: int = 8,
    ) -> None:
        """Describe the agent.

        Args:
            name: The agent's name in records and in ``agents``.
            system_prompt: The first message of every conversation; empty for none.
            tools: Functions with annotated parameters and a docstring.
            model: The model's name in requests outside a training.
            max_turns: Most model calls for one input.

        Raises:
            ConfigError: a tool is not a function.
        """
        renamed("Agent(name, system_prompt, tools)", "a plain function run_agent(task)")
        for tool in tools:
            if not callable(tool):
                raise ConfigError(f"Agent {name!r} got the tool {tool!r:.80}: give a function")
        self.name = name
        self.system_prompt = system_prompt
        self._tools = {tool.__name__: tool for tool in tools}
        self._model = model
        self._max_turns = max_turns

    @property
    def prompt_name(self) -> str:
        """Name of the resource that replaces `system_prompt` where a run tunes it."""
        return f"{self.name}_prompt"

    def __call__(self, task: Task) -> str:
        """Answer a task's input."""
        return self.run(task.input)

    def run(self, request: Any) -> str:
        """Answer one request; call tools as often as the model asks, at most `max_turns` calls."""
        text = request if isinstance(request, str) else msgspec.json.encode(request).decode()
        system = self._system()
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        said = ""
        with agent_scope(self.name):
            for _ in range(self._max_turns):
                message = self._ask(messages)
                said = message.get("content") or ""
                calls = message.get("tool_calls") or []
                if not calls:
                    break
                messages.append({**message, "role": "assistant"})
                messages += [self._use(call) for call in calls]
        return said

    def _system(self) -> str:
        context = active()
        item = context.resources.items.get(self.prompt_name) if context is not None else None
        return item.template if isinstance(item, PromptTemplate) else self.system_prompt

    def _ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "messages": messages}
        if self._tools:
            body["tools"] = [schema_of(tool) for tool in self._tools.values()]
        return chat(body)["choices"][0]["message"]

    def _use(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Run a tool and return its message; the model reads what is wrong with its call."""
        asked = cast("Mapping[str, Any]", call["function"])
        name, error, result = str(asked["name"]), "", ""
        arguments: Any = asked.get("arguments") or "{}"
        try:
            arguments = msgspec.json.decode(arguments)
            tool = self._tools[name]
            inspect.signature(tool).bind(**arguments)
        except (msgspec.DecodeError, KeyError, TypeError) as problem:
            error = result = f"error: {problem}; tools: {', '.join(self._tools)}"
        else:
            result = str(tool(**arguments))
        agl_core.emit_tool_call(name, arguments, result, tool_call_id=call.get("id"), error=error)
        return {"role": "tool", "tool_call_id": call.get("id", ""), "content": result}


def schema_of(tool: Callable[..., Any]) -> dict[str, Any]:
    """Return the definition of a function as a tool of chat completions."""
    fields: dict[str, Any] = {
        parameter.name: (
            Any if parameter.annotation is parameter.empty else parameter.annotation,
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in inspect.signature(tool, eval_str=True).parameters.values()
    }
    model: type[BaseModel] = create_model(tool.__name__, **fields)
    described = {"name": tool.__name__, "description": inspect.getdoc(tool) or ""}
    return {"type": "function", "function": {**described, "parameters": model.model_json_schema()}}
