"""R11: the scores of single agents in a run's report."""

from agl_core.training.evaluate import agent_scores, estimate
from agl_core.types import Evaluation


def evaluation(step: int, score: float, **channels: float) -> Evaluation:
    means = {name: estimate([value, value]) for name, value in channels.items()}
    return Evaluation(step=step, score=estimate([score, score]), channels=means)


def test_an_agent_s_score_is_that_of_the_channel_of_its_name() -> None:
    evaluations = [evaluation(0, 0.5, left=0.25), evaluation(2, 0.6), evaluation(4, 0.75, left=1.0)]
    scores = {name: agent_scores(evaluations, name) for name in ("left", "right_*")}
    assert {when: each.mean for when, each in scores["left"].items()} == {
        "before": 0.25,
        "after": 1,
    }
    rest = {when: each.mean for when, each in scores["right_*"].items()}
    assert rest == {"before": 0.5, "after": 0.75}
    assert scores["left"]["after"].n == 2


def test_without_a_second_evaluation_there_is_no_score_after() -> None:
    assert agent_scores([], "left") == {}
    assert list(agent_scores([evaluation(0, 0.5)], "left")) == ["before"]
