from __future__ import annotations

import threading
import time

import pytest

from logitd.client._watchdog import Limit, Watchdog


class Call:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


def num_threads():
    """Those of watchdogs: what else runs in this process comes and goes."""
    return sum(thread.name == "logitd-watchdog" for thread in threading.enumerate())


@pytest.fixture
def watchdog():
    watchdog = Watchdog()
    yield watchdog
    watchdog.close()


def test_an_overdue_call_is_cancelled(watchdog):
    call, start = Call(), time.monotonic()
    with Limit(watchdog, call, 0.05) as limit:
        assert call.cancelled.wait(5)
    assert limit.has_passed
    assert time.monotonic() - start >= 0.05


def test_a_call_in_time_is_left_alone(watchdog):
    call = Call()
    with Limit(watchdog, call, 1) as limit:
        pass
    time.sleep(1.2)
    assert not limit.has_passed
    assert not call.cancelled.is_set()


def test_a_shorter_limit_is_not_kept_waiting_by_a_longer_one(watchdog):
    patient, hasty = Call(), Call()
    with Limit(watchdog, patient, 30), Limit(watchdog, hasty, 0.05):
        assert hasty.cancelled.wait(5)
    assert not patient.cancelled.is_set()


def test_each_limit_counts_for_itself(watchdog):
    calls = [Call() for _ in range(20)]
    limits = [Limit(watchdog, call, 0.02 * (20 - index)) for index, call in enumerate(calls)]
    for limit in limits:
        limit.__enter__()
    assert all(call.cancelled.wait(5) for call in calls)
    for limit in limits:
        limit.__exit__(None, None, None)


def test_many_limits_need_one_thread_and_no_limit_needs_none(watchdog):
    before = num_threads()
    with Limit(watchdog, Call(), None):
        assert num_threads() == before
    for _ in range(100):
        with Limit(watchdog, Call(), 30):
            assert num_threads() == before + 1


def test_closing_ends_the_thread():
    watchdog, before = Watchdog(), num_threads()
    with Limit(watchdog, Call(), 30):
        assert num_threads() == before + 1
    watchdog.close()
    assert num_threads() == before
