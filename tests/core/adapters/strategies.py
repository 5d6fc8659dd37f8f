"""Attempts drawn by hypothesis: conversations that go on, fork, repeat and get edited."""

from agl_testing.attempts import CallOptions, ScriptedAttempt
from hypothesis import strategies as st

TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@st.composite
def attempts(draw, *, agents="ab"):
    """An attempt with up to eight calls; a small vocabulary makes shared prefixes likely."""
    attempt = ScriptedAttempt()
    histories = {agent: [[]] for agent in agents}
    for _ in range(draw(st.integers(1, 8))):
        agent = draw(st.sampled_from(agents))
        prompt = [*draw(st.sampled_from(histories[agent])), *draw(TOKENS)]
        if draw(st.booleans()):
            prompt[draw(st.integers(0, len(prompt) - 1))] = 9
        responses = draw(st.lists(TOKENS, min_size=1, max_size=3))
        run = draw(st.sampled_from(["", "r1", "r2"]))
        attempt.call(agent, prompt, *responses, options=CallOptions(run=run))
        histories[agent].append([*prompt, *draw(st.sampled_from(responses))])
    return attempt
