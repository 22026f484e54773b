"""Limits on requests to a server: rates per minute, a shared pause, and a number in flight that adapts to overload.

Clocks and sleeps are arguments for tests; both are in seconds, monotonic.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[object]]
_MINUTE = 60.0
_ENDLESS = 10**15
_EVEN_S = 1.0  # seconds of requests or tokens that may be sent at once after a pause


class _Bucket:
    """One quantity with a limit per minute. The level may be negative: a debt that delays later requests.

    In any minute at most the limit is taken, plus the last request's overdraft: a burst b and a rate r with
    b + 60 r = limit + 1 (for whole units, the first of a burst is available at the start of the minute). Units that
    clients may hold without having used them (`held`) count as part of the burst.
    """

    def __init__(self, per_minute: float | None, now: float, held: float = 0.0) -> None:
        self._burst, self._rate = float("inf"), 0.0  # units, and units per second
        if per_minute is not None:
            self._burst = max(1.0, per_minute * _EVEN_S / _MINUTE)
            self._rate = (per_minute + 1 - self._burst - held) / _MINUTE
        self._level = self._burst
        self._seen = now

    def _refill(self, now: float) -> None:
        self._level = min(self._burst, self._level + self._rate * (now - self._seen))
        self._seen = now

    def wait(self, amount: float, now: float) -> float:
        """Return seconds until `amount` may be taken; a full bucket admits more than a burst."""
        self._refill(now)
        missing = min(amount, self._burst) - self._level
        return missing / self._rate if missing > 1e-9 else 0.0

    def take(self, amount: float) -> None:
        self._level = min(self._burst, self._level - amount)


Lease = tuple[float, int, int]  # seconds to wait, and the requests and tokens that may be sent then
Leases = Callable[[int, int, int], Awaitable[Lease]]  # Rates.lease, perhaps of another process


class Rates:
    """A server's limits per minute, leased in slices to the clients of one account, each with its own `Limiter`.

    A slice is the requested amount, or the client's share of a second if that is more; None: no limit.
    """

    def __init__(
        self,
        requests_per_minute: float | None,
        tokens_per_minute: float | None,
        clients: int,
        clock: Clock = time.monotonic,
    ) -> None:
        self._clock, self._until = clock, clock()  # when the last slice may be used
        limits = (requests_per_minute, tokens_per_minute)
        self._shares = [
            _ENDLESS if limit is None else max(1, int(limit * _EVEN_S / _MINUTE / clients)) for limit in limits
        ]
        self._buckets = [
            _Bucket(limit, clock(), clients * (share - 1)) for limit, share in zip(limits, self._shares, strict=True)
        ]

    def lease(self, requests: int, tokens: int, unused: int = 0) -> Lease:
        """Lease at least so many requests and tokens, after earlier leases.

        unused: tokens of earlier leases that the client returns.
        """
        self._buckets[1].take(-unused)
        wanted = [max(amount, share) for amount, share in zip((requests, tokens), self._shares, strict=True)]
        now = self._clock()
        begin = max(now, self._until)
        self._until = begin + max(b.wait(amount, begin) for b, amount in zip(self._buckets, wanted, strict=True))
        for bucket, amount in zip(self._buckets, wanted, strict=True):
            bucket.wait(amount, self._until)  # refill up to the time at which the slice may be used
            bucket.take(amount)
        return self._until - now, wanted[0], wanted[1]


class Limiter:
    """Permission to send requests and tokens, first come, first served, from slices that `Rates` leases.

    lease: `Rates.lease` in the process that holds the rates.
    """

    def __init__(self, lease: Leases, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep) -> None:
        self._lease = lease
        self._clock = clock
        self._sleep = sleep
        self._requests = self._tokens = self._unused = self._slice = 0
        self._ready = clock()
        self._turn = asyncio.Lock()  # serves its waiters in order

    async def reserve(self, tokens: int) -> None:
        """Wait until a request of so many tokens may be sent. If cancelled, a leased slice serves the next caller."""
        async with self._turn:
            lack = max(0, 1 - self._requests), max(0, tokens - self._tokens)
            if any(lack):
                unused, self._unused = self._unused, 0
                wait, requests, self._slice = await self._lease(*lack, unused)
                self._requests += requests
                self._tokens += self._slice
                self._ready = self._clock() + wait
            while (wait := self._ready - self._clock()) > 0:
                await self._sleep(wait)
            self._requests -= 1
            self._tokens -= tokens

    def settle(self, reserved: int, used: int) -> None:
        """Correct a reservation of tokens to the server's count. The next lease returns what exceeds a slice."""
        self._tokens += reserved - used
        excess = max(0, self._tokens - self._slice)
        self._tokens -= excess
        self._unused += excess


class Pause:
    """A pause of all requests of a client."""

    def __init__(self, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._until = clock()

    @property
    def is_open(self) -> bool:
        """Return whether requests may pass."""
        return self._clock() >= self._until

    def pause(self, seconds: float) -> None:
        """Pause for so long; a longer pause in progress is kept."""
        self._until = max(self._until, self._clock() + seconds)

    async def passed(self) -> None:
        """Wait until the pause is over."""
        while (wait := self._until - self._clock()) > 0:
            await self._sleep(wait)


class InFlight:
    """Number of requests in flight: additive increase, multiplicative decrease, at most `bound`.

    Follows TCP (RFC 5681): starts at one, so a wrong key or address costs one request; each answer adds one up to the
    threshold and 1/limit above it; an overload halves limit and threshold. Requests sent before the last halving do
    not halve again.
    """

    def __init__(self, bound: int) -> None:
        self._bound = self._threshold = float(bound)
        self._limit = 1.0
        self._epoch = 0
        self._active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return int(self._limit)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[int]:
        """Hold a slot, waited for in order; yields the epoch for `overloaded`."""
        await self._acquire()
        try:
            yield self._epoch
        finally:
            self._active -= 1
            self._wake()

    async def _acquire(self) -> None:
        while self._active >= self.limit:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()  # offer the slot to the next waiter
                raise
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
        self._active += 1

    def _wake(self) -> None:
        free = self.limit - self._active
        while free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1

    def answered(self) -> None:
        """Record an answer without overload."""
        step = 1.0 if self._limit < self._threshold else 1.0 / self._limit
        self._limit = min(self._bound, self._limit + step)
        self._wake()

    def overloaded(self, epoch: int) -> None:
        """Record an overload in response to a request of a slot of `epoch`."""
        if epoch == self._epoch:
            self._epoch += 1
            self._limit = self._threshold = max(1.0, self._limit / 2)
