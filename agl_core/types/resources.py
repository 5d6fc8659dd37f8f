"""Resources of agents: versioned weights behind an endpoint, versioned prompts."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from agl_core.errors import ConfigError

RESERVED_PREFIX: Final = "@"
"""Prefix of reserved names, such as ``@selector``: calls of a framework, never trained."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class LLM(msgspec.Struct, frozen=True, kw_only=True, tag="llm"):
    """A policy behind an OpenAI-compatible endpoint."""

    model: str
    base_url: str = ""
    api_key: str = ""
    policy: str = ""
    version: int = 0


class PromptTemplate(msgspec.Struct, frozen=True, kw_only=True, tag="prompt_template"):
    """A prompt with ``{name}`` placeholders; every other brace is literal text."""

    template: str

    @property
    def placeholders(self) -> frozenset[str]:
        return frozenset(_PLACEHOLDER.findall(self.template))

    def format(self, **values: Any) -> str:
        """Replace the placeholders that have a value; placeholders inside values stay.

        Raises:
            ConfigError: the template has no placeholder of that name.
        """
        unknown = sorted(set(values) - self.placeholders)
        if unknown:
            raise ConfigError(
                f"Prompt has no placeholders {unknown}; it has {sorted(self.placeholders)}"
            )
        return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), self.template)


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable, versioned set of named resources."""

    version: int = 0
    """Set by the store when published: 1, 2, ..."""
    run_id: str = ""
    step: int = 0
    items: dict[str, LLM | PromptTemplate] = {}
    created_at: float = 0.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A named set of weights and the agents it serves."""

    name: str
    agents: tuple[str, ...] = ("*",)
    """Exact names or globs; the first policy in config order that matches an agent serves it."""
    trainable: bool = False
    model: str = ""
    version: int = 0
    image_token: int | None = None
    """Placeholder id for each part of an image in its prompts; None if it trains only on text."""
    vocab_size: int | None = None
    """Upper bound of token ids, exclusive; None if the engine does not know it."""
    shows_tools: bool = True
    """False if the model's chat template is known to leave out the tools of a request."""
    train_constrained: bool = False
    """Train on answers that were sampled under a constraint; see `Sampling.constraints`."""

    def serves(self, agent: str) -> bool:
        """Return whether a name or glob of the policy matches; an earlier policy has precedence."""
        return any(agent_matches(pattern, agent) for pattern in self.agents)


def agent_matches(pattern: str, agent: str) -> bool:
    """Return whether a name or glob (``*``, ``?``, ``[...]``) matches the agent; case-sensitive."""
    return pattern == agent or fnmatchcase(agent, pattern)
