"""A program with one prompt, its tasks, its reward and an editor that needs no model.

The scripted model of `test_prompt_phases` uses the words that the prompt names.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import httpx

import agl_core as agl

WORDS = ("price", "unit", "greeting")
PROMPT = "<prompt>Answer the question about {item} in one line.</prompt>"


async def run_agent(task):
    llm = agl.current().llm
    item = task.input["item"]
    messages = [
        {"role": "system", "content": PROMPT.replace("{item}", item)},
        {"role": "user", "content": f"Write about {item}."},
    ]
    with agl.agent_scope("writer"):
        async with httpx.AsyncClient(timeout=600) as client:
            answer = await client.post(
                f"{llm.base_url}/chat/completions",
                headers={"authorization": f"Bearer {llm.api_key}"},
                json={"model": "any", "messages": messages},
            )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


def reward(task, output, attempt):
    missing = [word for word in WORDS if word not in output]
    return agl.Score(1 - len(missing) / len(WORDS), f"missing: {', '.join(missing)}")


def train():
    return [agl.Task(id=f"t{n}", input={"item": f"tea{n}"}) for n in range(12)]


def val():
    return [agl.Task(id=f"v{n}", input={"item": f"rice{n}"}) for n in range(12)]


def edit(messages, role):
    """Add one word that the critique calls missing; each call is a line of a file."""
    with Path(os.environ["EDITS"]).open("a") as file:
        file.write(f"{role}\n")
    said = "\n".join(str(message["content"]) for message in messages)
    missing = [word for word in WORDS if re.search(rf"missing: [a-z, ]*{word}", said)]
    if role == "critic":
        return f"missing: {', '.join(missing)}"
    text = re.findall(r"<prompt>.*?</prompt>", said, re.DOTALL)[-1]
    new = next((word for word in missing if word not in text), "calm")
    return "```\n" + text.replace("</prompt>", f" Use {new}.</prompt>") + "\n```"
