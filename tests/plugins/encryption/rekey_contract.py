"""What ``agl store rekey`` does to every store that it can write."""

from __future__ import annotations

import pytest
from agl_encryption._rekey import Rekeyed, rekey

from agl_core.store import encode
from agl_core.types import AttemptStatus, Rollout, RolloutQuery
from tests.plugins.encryption.keyring import NEW, OLD, encrypted, sealing, without_keys
from tests.plugins.encryption.test_stored import PLANTED, check, fill, task

BOTH = {"new": NEW, "old": OLD}


class RekeyContract:
    """Subclasses have a fixture `inner`, an open and empty store."""

    async def bodies(self, inner) -> bytes:
        """Return what the store's records hold."""

        def read(records) -> bytes:
            rollouts = records.select(RolloutQuery())
            spans = [blob for one in records.spans([r.id for r in rollouts], None) for blob in one]
            resources = records.resources(records.latest_version())
            return b"".join([*map(encode, rollouts), *spans, encode(resources)])

        return await inner.read(read)

    @pytest.mark.parametrize("before", [without_keys, encrypted])
    async def test_everything_has_the_new_key_afterwards(self, inner, before) -> None:
        filled = await fill(before(inner))
        done = await rekey(inner, sealing(BOTH))
        assert done == Rekeyed(rollouts=2, attempts=2, spans=3, resources=1)
        held = await self.bodies(inner)
        assert [word for word in " ".join(PLANTED.values()).split() if word.encode() in held] == []
        assert b"\x03old" not in held
        await check(encrypted(inner, {"new": NEW}), *filled)
        assert await rekey(inner, sealing(BOTH)) == Rekeyed(kept=6)
        assert await self.bodies(inner) == held
        every = await rekey(inner, sealing({"new": NEW}), everything=True)
        assert every == Rekeyed(rollouts=2, spans=3, resources=1, kept=0)
        assert await self.bodies(inner) != held
        await check(encrypted(inner, {"new": NEW}), *filled)

    async def test_statuses_running_attempts_and_repeated_ends_stay(self, inner) -> None:
        store = encrypted(inner)
        await store.enqueue([Rollout(id=f"ro_{n}", task=task(), run_id="r") for n in range(4)])
        done, running, cancelled = await store.claim("w", limit=3)
        await store.finish(done.attempt.id, status=AttemptStatus.SUCCEEDED, output="x")
        await store.consume([done.rollout.id])
        await store.cancel([cancelled.rollout.id], reason="not needed")
        before = await store.rollouts(RolloutQuery())
        await rekey(inner, sealing(BOTH))
        both = encrypted(inner, BOTH)
        assert await both.rollouts(RolloutQuery()) == before
        old = encrypted(inner, BOTH, active="old")
        ended = await old.finish(done.attempt.id, status=AttemptStatus.SUCCEEDED, output="x")
        assert ended.output == "x"
        assert await both.heartbeat([running.attempt.id]) == []
        ended = await both.finish(running.attempt.id, status=AttemptStatus.SUCCEEDED, output="y")
        assert ended.output == "y"
        (left,) = await both.claim("w", limit=3, timeout_s=0)
        assert left.rollout.task == task()

    async def test_an_interrupted_pass_continues_where_it_was(self, inner) -> None:
        store = encrypted(inner)
        await store.enqueue([Rollout(id=f"ro_{n:03}", task=task(), run_id="r") for n in range(30)])

        class StopError(Exception):
            pass

        def stop(done: Rekeyed) -> None:
            if done.rollouts >= 20:
                raise StopError

        with pytest.raises(StopError):
            await rekey(inner, sealing(BOTH), report=stop)
        rest = await rekey(inner, sealing(BOTH))
        assert (rest.rollouts, rest.kept) == (10, 20)
        found = await encrypted(inner, {"new": NEW}).rollouts(RolloutQuery())
        assert len(found) == 30
