"""Rates, pauses and windows: on a clock that jumps, and rates once more as a real server counts them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.judging.http.client import ChatClient
from anmi_ray.judging.http.dispatch import Result, ask_all
from anmi_ray.judging.http.limits import InFlight, Lease, Leases, Limiter, Pause, Rates
from tests.judging.serving import Chat, ask, one_by_one


class Time:
    """A clock that stands still but for sleeping."""

    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def limited(
    per_minute: float | None, tokens: float | None, work: Callable[[Limiter, Time], Coroutine[None, None, None]]
) -> None:
    """Run `work` with the only client of a server with these limits."""
    time = Time()
    asyncio.run(work(Limiter(lease_of(Rates(per_minute, tokens, 1, time.clock)), time.clock, time.sleep), time))


def lease_of(rates: Rates) -> Leases:
    async def lease(*wanted: int) -> Lease:
        return rates.lease(*wanted)

    return lease


@given(limit=st.integers(100, 100_000), asked=st.lists(st.integers(1, 5000), min_size=1, max_size=60))
def test_tokens_a_minute_are_kept_to_the_last_request(limit: int, asked: list[int]) -> None:
    left: list[tuple[float, int]] = []

    async def work(bucket: Limiter, time: Time) -> None:
        for tokens in asked:
            await bucket.reserve(tokens)
            left.append((time.now, tokens))

    limited(None, limit, work)
    for start, _ in left:
        minute = [tokens for t, tokens in left if start <= t < start + 60 - 1e-6]
        assert sum(minute[:-1]) <= limit + 2  # the last one may overdraw: what follows pays for it


def test_settling_gives_back_and_takes_more() -> None:
    async def work(bucket: Limiter, time: Time) -> None:
        await bucket.reserve(600)
        bucket.settle(600, 0)
        await bucket.reserve(10)
        assert time.now == 1000.0
        bucket.settle(10, 610)  # it took far more: the next one waits about a minute
        await bucket.reserve(10)
        assert time.now == pytest.approx(1060.0, abs=2.0)

    limited(None, 600, work)


def test_without_limits_nobody_waits() -> None:
    async def work(bucket: Limiter, time: Time) -> None:
        for _ in range(1000):
            await bucket.reserve(10**9)
        bucket.settle(5, 10**9)
        assert time.now == 1000.0

    limited(None, None, work)


def test_a_cancelled_reservation_takes_nothing() -> None:
    async def main() -> None:
        bucket = Limiter(lease_of(Rates(60, None, 1)))
        await bucket.reserve(0)
        waiting = asyncio.create_task(bucket.reserve(0))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait({waiting})
        began = asyncio.get_running_loop().time()
        await bucket.reserve(0)
        assert asyncio.get_running_loop().time() - began < 1.9  # else it would be two seconds

    asyncio.run(main())


@given(
    limit=st.integers(1, 3000),
    tokens=st.one_of(st.none(), st.integers(1000, 100_000)),
    clients=st.integers(1, 5),
    lulls=st.lists(st.floats(0, 90), max_size=4),
)
def test_leased_slices_keep_the_limit_over_all_clients(
    limit: int, tokens: int | None, clients: int, lulls: list[float]
) -> None:
    """Clients with a clock each, the one behind goes first; a request takes up to 100 tokens and reserves too many."""
    clock = Time()
    rates = Rates(limit, tokens, clients, clock.clock)
    left: list[tuple[float, int]] = []

    async def main() -> None:
        clocks = [Time() for _ in range(clients)]
        leased = [Limiter(lease_of(rates), one.clock, one.sleep) for one in clocks]
        for number in range(min(3 * limit, 400) + 2 * clients):
            which = min(range(clients), key=lambda client: clocks[client].now)
            if number % 50 == 25 and lulls:
                clocks[which].now += lulls[number % len(lulls)]
            clock.now = max(clock.now, clocks[which].now)
            clocks[which].now = clock.now
            await leased[which].reserve(150)
            used = (number * 37) % 100
            leased[which].settle(150, used)
            left.append((clocks[which].now, used))

    asyncio.run(main())
    times = sorted(time for time, _ in left)
    for start in range(len(times) - limit):
        assert times[start + limit] - times[start] >= 60 - 1e-6
    if tokens is not None:
        for start, _ in left:
            minute = sum(used for time, used in left if start <= time < start + 60 - 1e-6)
            assert minute <= tokens + 150 * clients + 2


def test_a_slice_serves_many_requests() -> None:
    leases: list[tuple[int, ...]] = []

    async def lease(*wanted: int) -> Lease:
        leases.append(wanted)
        return 0.0, 50, 10**15

    async def main() -> None:
        leased = Limiter(lease)
        for _ in range(100):
            await leased.reserve(1000)

    asyncio.run(main())
    assert len(leases) == 2


def test_the_longest_pause_holds() -> None:
    async def main() -> None:
        time = Time()
        gate = Pause(time.clock, time.sleep)
        assert gate.is_open
        gate.pause(10.0)
        gate.pause(3.0)
        assert not gate.is_open
        await gate.passed()
        assert time.now == 1010.0
        assert gate.is_open

    asyncio.run(main())


def test_a_window_grows_by_answers_and_halves_once_per_overload() -> None:
    async def main() -> None:
        window = InFlight(16)
        assert window.limit == 1
        for _ in range(40):
            window.answered()
        assert window.limit == 16
        async with window.slot() as one, window.slot() as other:
            window.overloaded(one)
            window.overloaded(other)  # left before the first was answered
            assert window.limit == 8
            async with window.slot() as later:
                window.overloaded(later)
        assert window.limit == 4
        for _ in range(4):  # one window of answers admits one more
            window.answered()
        assert window.limit == 4
        window.answered()
        assert window.limit == 5
        for _ in range(20):
            async with window.slot() as epoch:
                window.overloaded(epoch)
        assert window.limit == 1

    asyncio.run(main())


@given(st.integers(1, 5), st.lists(st.sampled_from(["run", "cancel", "overload", "answer"]), max_size=60))
def test_a_window_is_never_overfull_and_loses_no_place(bound: int, steps: list[str]) -> None:
    async def main() -> None:
        window, active, most = InFlight(bound), 0, 0

        async def hold() -> None:
            nonlocal active, most
            async with window.slot():
                active += 1
                most = max(most, active)
                try:
                    await asyncio.sleep(0)
                finally:
                    active -= 1

        tasks: list[asyncio.Task[None]] = []
        for index, step in enumerate(steps):
            if step == "run":
                tasks.append(asyncio.create_task(hold()))
            elif step == "answer":
                window.answered()
            elif step == "cancel" and tasks:
                tasks[index % len(tasks)].cancel()
            elif step == "overload":
                async with window.slot() as epoch:
                    window.overloaded(epoch)
            if index % 3 == 0:
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert active == 0
        await asyncio.wait_for(asyncio.gather(*(hold() for _ in range(10))), 10)  # nobody kept a place
        assert most <= bound

    asyncio.run(main())


@pytest.mark.slow
def test_rates_are_kept_as_the_server_counts(chat: Chat) -> None:
    rate = 1200  # a minute: bursts of 20, then 20 a second
    got: list[Result] = []

    async def main() -> None:
        async with ChatClient(chat.config(requests_per_minute=rate, concurrency=32)) as client:
            await ask_all(client, one_by_one((bytes([i]), ask(f"question {i}")) for i in range(80)), got.extend)

    asyncio.run(main())
    times = [entry["t"] for entry in chat.log()]
    assert len(times) == len(got) == 80
    # n requests leave over no less than (n − burst) / rate = 3 seconds. Half of that, because a busy machine may let
    # the first arrive late, and the rest together with what has gathered meanwhile; unlimited, it would be a tenth.
    assert times[-1] - times[0] >= 0.5 * (80 - 20) / (rate / 60)


@pytest.mark.slow
def test_token_rates_are_kept_as_the_server_counts(chat: Chat) -> None:
    got: list[Result] = []

    async def main() -> None:
        # the server counts 102 tokens a call: after the first second's burst, ten calls a second
        config = chat.config(tokens_per_minute=61_200, concurrency=8, max_tokens=2)
        async with ChatClient(config) as client:
            await ask_all(client, one_by_one((bytes([i]), ask(f"question {i}")) for i in range(40)), got.extend)

    asyncio.run(main())
    times = [entry["t"] for entry in chat.log()]
    assert times[-1] - times[0] >= 0.5 * (40 - 10 - 8) / 10
