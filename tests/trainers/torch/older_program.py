"""A program in the shape of the quick start of agentlightning 0.3; only its import differs.

``import agentlightning as agl`` there, ``import agl_compat as agl`` here.
"""

import os
from typing import Any, cast

import agl_compat as agl
import httpx

SUMS = [{"question": f"What is {n} + {n}?", "result": str(2 * n)} for n in range(4)]

CONFIG: dict[str, Any] = {
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": {"train_batch_size": 2, "max_prompt_length": 128, "max_response_length": 8},
    "actor_rollout_ref": {
        "model": {"path": os.environ["MODEL"]},
        "rollout": {"n": 4, "name": "vllm", "multi_turn": {"format": "hermes"}},
        "actor": {"optim": {"lr": 1e-3}, "clip_ratio_low": 0.2, "clip_ratio_high": 0.3},
    },
    "trainer": {
        "total_training_steps": 2,
        "test_freq": 2,
        "experiment_name": "sums",
        "default_local_dir": os.environ["RUNS"],
    },
}


def graded(said: str, expected: str) -> float:
    return 1.0 if expected in said else len(set(said)) / 100


class SumAgent(agl.LitAgent[dict[str, Any]]):
    """Asks once, with the endpoint of the rollout."""

    def rollout(
        self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout
    ) -> float | None:
        llm = cast("agl.LLM", resources["main_llm"])
        base_url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        answer = httpx.post(
            f"{base_url}/chat/completions",
            headers={"authorization": f"Bearer {llm.api_key}"},
            json={
                "model": llm.model,
                "messages": [{"role": "user", "content": task["question"]}],
                "temperature": llm.sampling_parameters.get("temperature", 1.0),
            },
            timeout=600,
        )
        answer.raise_for_status()
        return graded(answer.json()["choices"][0]["message"]["content"] or "", task["result"])


def main() -> None:
    agl.setup_logging()
    train = cast("agl.Dataset[dict[str, Any]]", SUMS)
    trainer = agl.Trainer(
        n_runners=2,
        tracer=agl.OtelTracer(),
        algorithm=agl.VERL(CONFIG),
        adapter={"agent_match": "SumAgent"},
    )
    trainer.fit(SumAgent(), train_dataset=train, val_dataset=SUMS[:2])


if __name__ == "__main__":
    main()
