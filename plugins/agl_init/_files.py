"""The text of the files to write."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from agl_init._program import Program

RUN: Final = "run.toml"
TASKS: Final = "tasks.jsonl"
TRAINING: Final = "training.py"

_EXAMPLES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Settings of the run file beyond the program itself."""

    model: str
    naming: tuple[str, ...]
    """How the program's framework names agents."""


def takes_task(program: Program) -> bool:
    """Return whether the program's function already takes a task."""
    if program.parameters is None or len(program.parameters) != 1:
        return False
    (only,) = program.parameters
    return only.name == "task" or only.annotation.strip("'\"").rpartition(".")[2] == "Task"


def texts(program: Program, choices: Choices) -> dict[str, str]:
    """Return the text of each file by its name."""
    return {
        RUN: _run_file(program, choices),
        TASKS: _tasks(program),
        TRAINING: _training(program),
    }


def _run_file(program: Program, choices: Choices) -> str:
    if takes_task(program):
        place = program.file.name if program.by_file else program.module
        agent = f"{place}:{program.function}"
    else:
        agent = f"{TRAINING}:run_agent"
    naming = "".join(f"# {line}.\n" for line in choices.naming)
    names = "".join(f"# agents = [{_quoted(name)}]\n" for name in program.agents)
    return f"""\
# agl doctor {RUN}   tries it on a few tasks and names the agents that speak
# agl train {RUN}    trains
name = {_quoted(program.module.rpartition(".")[2])}
agent = {_quoted(agent)}

# The agents to train, by name or glob; "*" is every agent.
{naming}agents = ["*"]
{names}
# The weights to begin with: a directory, a name on the Hugging Face hub, or a name of `agl fetch`.
model = {_quoted(choices.model)}

[tasks]
train = "{TASKS}"
val = "{TASKS}"  # replace it by tasks that training never sees

[[rewards]]
name = "{TRAINING}:reward"

[algorithm]
name = "grpo"
group_size = 8
lr = 1e-5

[train]
steps = 20
tasks_per_step = {_EXAMPLES}

[rollout]
temperature = 1.0
max_tokens = 256
"""


def _tasks(program: Program) -> str:
    names = [each.name for each in program.parameters or ()]
    rows: list[dict[str, object]] = []
    for number in range(1, _EXAMPLES + 1):
        plain = f"Replace this by question {number}"
        several = len(names) > 1 and not takes_task(program)
        given = dict.fromkeys(names, plain) if several else plain
        rows.append({"input": given, "expected": f"Replace this by answer {number}"})
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _training(program: Program) -> str:
    if takes_task(program):
        return _HEAD.format("a reward") + f"from typing import Any\n\n{_IMPORT}\n\n{_REWARD}"
    module, function = program.module, program.function
    head = _HEAD.format("a function of a task, and a reward")
    if all(part.isidentifier() for part in module.split(".")):
        imports = f"from typing import Any\n\nfrom {module} import {function}\n\n{_IMPORT}"
    else:
        imports = (
            f"from importlib import import_module\nfrom typing import Any\n\n{_IMPORT}\n"
            f"{function} = import_module({_quoted(module)}).{function}\n"
        )
    return f"{head}{imports}\n\n{_call(program)}\n\n{_REWARD}"


def _call(program: Program) -> str:
    parameters = program.parameters
    several = parameters is not None and len(parameters) > 1
    given = "**task.input" if several else "task.input"
    call = f"{program.function}({given})"
    if program.is_async:
        return f"""\
async def run_agent(task: agl.Task) -> Any:
    return await {call}
"""
    return f"""\
def run_agent(task: agl.Task) -> Any:
    return {call}
"""


_HEAD: Final = '''\
"""What training adds to the program: {}."""

from __future__ import annotations

'''
_IMPORT: Final = "import agl_core as agl\n"
_REWARD: Final = '''\
def reward(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> float:
    """1.0 where the expected answer stands in the output; replace it by what you want more of."""
    right = str(task.expected).casefold() in str(output).casefold()
    return agl.Score(right, "" if right else f"expected {task.expected}")
'''


def _quoted(text: str) -> str:
    """Return a basic string of TOML, which is also a valid string in Python."""
    return json.dumps(text, ensure_ascii=False)
