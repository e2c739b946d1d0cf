"""The time limits of steps of asyncio, without a server."""

from __future__ import annotations

import asyncio
import time

import pytest

from logitd.client._aio_limits import TaskLimit, TaskLimits


async def wait(limits, seconds):
    with TaskLimit(limits):
        await asyncio.sleep(seconds)


def num_timers():
    return sum(not timer.cancelled() for timer in asyncio.get_running_loop()._scheduled)


def test_what_is_overdue_times_out(run):
    async def scenario():
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            await wait(TaskLimits(0.05), 5)
        assert 0.04 < time.monotonic() - start < 5
        assert asyncio.current_task().cancelling() == 0

    run(scenario)


def test_what_is_in_time_is_left_alone_and_so_is_what_comes_after(run):
    async def scenario():
        limits = TaskLimits(1)
        for _ in range(4):
            await wait(limits, 0.3)
        await asyncio.sleep(0.8)  # beyond what was left of the last one

    run(scenario)


def test_each_limit_counts_for_itself(run):
    async def scenario():
        limits, passed = TaskLimits(1), []

        async def step(name, seconds):
            try:
                await wait(limits, seconds)
            except TimeoutError:
                passed.append(name)

        steps = []
        for name, seconds in (("first", 5), ("quick", 0), ("second", 5), ("quick too", 0.05)):
            steps.append(asyncio.create_task(step(name, seconds)))
            await asyncio.sleep(0.02)
        await asyncio.gather(*steps)
        assert passed == ["first", "second"]
        assert not limits.standing

    run(scenario)


def test_many_limits_need_one_timer_and_no_limit_needs_none(run):
    async def scenario():
        await wait(TaskLimits(None), 0)
        assert num_timers() == 0
        limits = TaskLimits(30)
        await asyncio.gather(*(wait(limits, 0) for _ in range(50)))
        for _ in range(50):
            await wait(limits, 0)
        assert num_timers() == 1
        limits.close()
        assert num_timers() == 0

    run(scenario)


def test_a_limit_counts_after_the_timer_was_ended_and_after_it_found_nothing(run):
    async def scenario():
        limits = TaskLimits(0.05)
        await wait(limits, 0)
        limits.close()
        with pytest.raises(TimeoutError):
            await wait(limits, 5)
        await wait(limits, 0)
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            await wait(limits, 5)

    run(scenario)


def test_a_task_that_others_cancel_as_well_stays_cancelled(run):
    async def scenario():
        limits = TaskLimits(0.05)

        async def step():
            with TaskLimit(limits) as limit:
                try:
                    await asyncio.sleep(5)
                except asyncio.CancelledError:
                    assert limit.has_passed
                    asyncio.current_task().cancel()
                    raise

        task = asyncio.create_task(step())
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario)


def test_errors_pass_through(run):
    async def scenario():
        with pytest.raises(KeyError), TaskLimit(TaskLimits(30)) as limit:
            raise KeyError
        assert not limit.has_passed

    run(scenario)


def test_a_limit_that_stands_passes_even_when_the_client_is_closed(run):
    async def scenario():
        limits = TaskLimits(0.05)
        waiting = asyncio.create_task(wait(limits, 5))
        await asyncio.sleep(0)
        limits.close()
        with pytest.raises(TimeoutError):
            await waiting

    run(scenario)
