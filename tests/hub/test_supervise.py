"""Restarts of a server back off to once a minute, and a circuit breaker stops calls to one that fails (R7, R19)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import (
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.hub.supervise import Backoff, CircuitBreaker, Pause, is_away, is_undelivered

NOWHERE = UpstreamUnavailable("nothing listens there")


def answered(status: int) -> UpstreamError:
    return UpstreamUnavailable(f"status {status}", delivered="unknown", data={"status": status})


def busy(seconds: int) -> UpstreamError:
    return UpstreamUnavailable("busy", data={"status": 503, "retryAfter": seconds})


def test_each_end_within_a_minute_doubles_the_pause_and_the_fifth_is_a_failure() -> None:
    restarts = Backoff()
    assert [restarts.ended(now, 0.5) for now in (0.0, 1.0, 3.0, 6.0, 10.0)] == [
        Pause(0.5),
        Pause(1.0),
        Pause(2.0),
        Pause(4.0),
        Pause(60.0, is_failed=True),
    ]
    assert [restarts.ended(10.0 + 61 * n, 0.5) for n in range(1, 5)] == [Pause(60.0, is_failed=True)] * 4
    assert restarts.ended(400.0, 0.5, lived=61.0) == Pause(0.5), "one that has lived for a minute is trusted again"


def test_a_server_that_ends_now_and_then_is_started_again_at_once() -> None:
    restarts = Backoff()
    assert {restarts.ended(100.0 * n, 0.5) for n in range(50)} == {Pause(0.5)}


def test_a_requested_restart_resets_the_backoff() -> None:
    restarts = Backoff()
    for now in range(5):
        restarts.ended(float(now), 0.5)
    restarts.forget()
    assert restarts.ended(6.0, 0.5) == Pause(0.5)


@given(st.lists(st.floats(0, 30), max_size=20), st.floats(0, 1))
def test_a_pause_is_never_nothing_and_never_more_than_a_minute(gaps: list[float], lot: float) -> None:
    restarts, now = Backoff(), 0.0
    for gap in gaps:
        now += gap
        assert 0.4 <= restarts.ended(now, lot).seconds <= 60.0


def test_five_failures_within_ten_seconds_open_the_circuit_and_one_call_tries_it() -> None:
    circuit = CircuitBreaker()
    for now in (0.0, 1.0, 2.0, 3.0):
        circuit.failed(NOWHERE, now)
        assert circuit.admit(now)
    circuit.failed(NOWHERE, 4.0)
    assert not circuit.admit(13.9)
    assert circuit.admit(14.0)
    assert not circuit.admit(14.0), "one at a time"
    circuit.failed(NOWHERE, 14.1)
    assert not circuit.admit(24.0)
    assert circuit.admit(24.1)
    circuit.succeeded(24.2)
    assert circuit.admit(24.2) and circuit.admit(24.2)


def test_failures_far_apart_leave_it_closed() -> None:
    circuit = CircuitBreaker()
    for now in range(0, 100, 3):
        circuit.failed(NOWHERE, float(now))
        assert not circuit.is_open


def test_an_abandoned_trial_lets_the_next_call_try() -> None:
    circuit = CircuitBreaker()
    for _ in range(5):
        circuit.failed(NOWHERE, 0.0)
    assert circuit.admit(11.0)
    circuit.gave_up()
    assert circuit.admit(11.0)


@pytest.mark.parametrize(("wanted", "given"), [(1, 1.0), (40, 40.0), (999_999, 60.0)])
def test_what_a_server_asks_for_is_respected_within_reason(wanted: int, given: float) -> None:
    circuit = CircuitBreaker()
    circuit.failed(busy(wanted), 0.0)
    assert not circuit.admit(given - 0.1)
    assert circuit.admit(given)
    circuit.failed(busy(wanted), given)
    assert not circuit.admit(2 * given - 0.1)
    assert circuit.admit(2 * given)


def test_one_that_wants_a_second_call_after_call_is_left_alone_for_longer() -> None:
    circuit = CircuitBreaker()
    for now in range(5):
        circuit.failed(busy(1), float(now))
    assert not circuit.admit(13.9)
    assert circuit.admit(14.0)


@pytest.mark.parametrize(
    ("problem", "undelivered", "away"),
    [
        (NOWHERE, True, True),
        (UpstreamClosed("gone"), True, True),
        (UpstreamTimeout("slow"), False, True),
        (UpstreamProtocolError("nonsense"), False, True),
        (busy(7), True, False),
        *((answered(status), True, False) for status in (429, 500)),
        *((answered(status), True, True) for status in (502, 503, 504)),
        *((answered(status), False, False) for status in (302, 400, 401, 403, 404, 408, 413, 422)),
    ],
    ids=str,
)
def test_a_server_that_refuses_a_request_was_reached(problem: UpstreamError, undelivered: bool, away: bool) -> None:
    assert (is_undelivered(problem), is_away(problem)) == (undelivered, away)
