"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_rewards(register: Register) -> None:
    for name, summary in (
        ("exact_match", "the answer equals the expected one"),
        ("numeric", "the answer's number is within a tolerance of the expected one"),
        ("regex", "the answer matches a pattern"),
        ("json_schema", "the answer is JSON that a schema accepts"),
        ("llm_judge", "a language model scores the answer by a rubric"),
    ):
        attribute = "".join(part.capitalize() for part in name.split("_"))
        register(
            name,
            f"agl_rewards._{name}:{attribute}",
            config=f"agl_rewards._{name}:{attribute}Options",
            summary=summary,
        )


@hookimpl
def agl_register_routes(register: Register) -> None:
    register(
        "POST /rewards",
        "agl_rewards._ingest:RewardIngest",
        summary="take rewards from agents in any language",
    )
