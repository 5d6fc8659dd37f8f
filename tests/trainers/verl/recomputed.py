"""What transformers makes of a directory of weights, to tell which ones answered."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM


def recomputed(
    directory: str, prompt: Sequence[int], sampled: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities of the sampled tokens, in float32."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.tensor([[*prompt, *sampled]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(-1, torch.tensor(sampled)[:, None])[
        :, 0
    ]


def answered_by(
    directory: str, prompt: Sequence[int], sampled: Sequence[int], told: Sequence[float]
) -> bool:
    """Whether the log-probabilities that came with an answer are those of these weights."""
    known = recomputed(directory, prompt, sampled)
    return torch.allclose(torch.tensor(told), known, atol=2e-4, rtol=0)
