"""What the agents of a run work with: its policies behind the gateway, and its prompts."""

from __future__ import annotations

from collections.abc import Iterable

from agl_core.config import RunConfig
from agl_core.interfaces import Gateway
from agl_core.types import LLM, Policy, PromptTemplate, Resources


def make_resources(
    config: RunConfig, gateway: Gateway, policies: Iterable[Policy], *, step: int
) -> Resources:
    """One `LLM` per policy and one `PromptTemplate` per prompt, by name; not yet numbered.

    No key is among them, as they are stored: the runner gives each attempt its own.
    """
    llms = {
        policy.name: LLM(
            model=policy.name,
            base_url=f"{gateway.url}/v1",
            policy=policy.name,
            version=policy.version,
        )
        for policy in policies
    }
    prompts = {name: PromptTemplate(template=text) for name, text in config.prompts.items()}
    return Resources(run_id=config.name, step=step, items={**llms, **prompts})
