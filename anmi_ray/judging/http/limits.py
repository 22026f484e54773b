"""How fast a server is asked: a rate per minute, a pause for everybody, and a number in flight that adapts to overload.

Clocks and sleeps are arguments, so that tests need not wait; both are in seconds, monotonic.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[object]]
_MINUTE = 60.0
_ENDLESS = 10**15
_EVEN_S = 1.0  # what may be sent at once after a lull: this many seconds' worth


class Limiter(Protocol):
    """Permission to send, by requests and by tokens; one for all clients that share an account."""

    async def reserve(self, requests: int, tokens: int) -> None:
        """Wait until that much may be sent. Cancelled while waiting, it has taken nothing."""
        ...

    def settle(self, reserved: int, used: int) -> None:
        """Correct a reservation of tokens to what the server counted."""
        ...


class _Bucket:
    """One quantity with a limit per minute. The level may fall below zero: a debt that delays what comes after.

    In any minute at most the limit is taken, plus the last request's overdraft: a burst b and a rate r with
    b + 60 r = limit + 1 (of whole things, the first of a burst is there at the minute's beginning already). What others
    may have taken and not used yet (`held`) can leave with a burst, and counts as part of it.
    """

    def __init__(self, per_minute: float | None, now: float, held: float = 0.0) -> None:
        self._burst, self._rate = float("inf"), 0.0  # things, and things a second
        if per_minute is not None:
            self._burst = max(1.0, per_minute * _EVEN_S / _MINUTE)
            self._rate = (per_minute + 1 - self._burst - held) / _MINUTE
        self._level = self._burst
        self._seen = now

    def _refill(self, now: float) -> None:
        self._level = min(self._burst, self._level + self._rate * (now - self._seen))
        self._seen = now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken; more than a burst may be taken from a full bucket."""
        self._refill(now)
        missing = min(amount, self._burst) - self._level
        return missing / self._rate if missing > 1e-9 else 0.0

    def take(self, amount: float) -> None:
        self._level = min(self._burst, self._level - amount)


class TokenBucket:
    """A Limiter of one process: first come, first served; None: no limit."""

    def __init__(
        self,
        requests_per_minute: float | None,
        tokens_per_minute: float | None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._requests = _Bucket(requests_per_minute, clock())
        self._tokens = _Bucket(tokens_per_minute, clock())
        self._turn = asyncio.Lock()

    async def reserve(self, requests: int, tokens: int) -> None:
        """See Limiter."""
        async with self._turn:  # a lock serves its waiters in order
            while wait := max(self._requests.wait(requests, self._clock()), self._tokens.wait(tokens, self._clock())):
                await self._sleep(wait)
            self._requests.take(requests)
            self._tokens.take(tokens)

    def settle(self, reserved: int, used: int) -> None:
        """See Limiter."""
        self._tokens.take(used - reserved)


Lease = tuple[float, int, int]  # seconds to wait, then so many requests and tokens may be sent
Leases = Callable[[int, int, int], Awaitable[Lease]]  # Rates.lease, wherever it stands


class Rates:
    """A server's limits a minute, leased in slices to several clients of one account, each with a `Leased` of its own.

    A slice is what is asked for, or a client's share of a second if that is more; None: no limit.
    """

    def __init__(
        self,
        requests_per_minute: float | None,
        tokens_per_minute: float | None,
        clients: int,
        clock: Clock = time.monotonic,
    ) -> None:
        self._clock, self._until = clock, clock()  # when the last slice is used
        limits = (requests_per_minute, tokens_per_minute)
        self._shares = [
            _ENDLESS if limit is None else max(1, int(limit * _EVEN_S / _MINUTE / clients)) for limit in limits
        ]
        self._buckets = [
            _Bucket(limit, clock(), clients * (share - 1)) for limit, share in zip(limits, self._shares, strict=True)
        ]

    def lease(self, requests: int, tokens: int, unused: int = 0) -> Lease:
        """At least so many requests and tokens, and how long to wait for them; leases follow one another.

        `unused` tokens of earlier leases come back.
        """
        self._buckets[1].take(-unused)
        wanted = [max(amount, share) for amount, share in zip((requests, tokens), self._shares, strict=True)]
        now = self._clock()
        begin = max(now, self._until)
        self._until = begin + max(b.wait(amount, begin) for b, amount in zip(self._buckets, wanted, strict=True))
        for bucket, amount in zip(self._buckets, wanted, strict=True):
            bucket.wait(amount, self._until)  # filled up to the moment at which the slice is used, not before
            bucket.take(amount)
        return self._until - now, wanted[0], wanted[1]


class Leased:
    """A Limiter of one client in one event loop, which takes slices through `lease` from Rates that stand elsewhere."""

    def __init__(
        self,
        lease: Leases,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._lease = lease
        self._clock = clock
        self._sleep = sleep
        self._requests = self._tokens = self._unused = self._slice = 0
        self._ready = clock()
        self._turn = asyncio.Lock()  # serves its waiters in order

    async def reserve(self, requests: int, tokens: int) -> None:
        """See Limiter. Cancelled while it waits for a slice, that slice serves whoever comes next."""
        async with self._turn:
            lack = max(0, requests - self._requests), max(0, tokens - self._tokens)
            if any(lack):
                unused = self._unused
                self._unused = 0
                wait, more_requests, self._slice = await self._lease(*lack, unused)
                self._requests = self._requests + more_requests
                self._tokens = self._tokens + self._slice
                self._ready = self._clock() + wait
            while (wait := self._ready - self._clock()) > 0:
                await self._sleep(wait)
            self._requests -= requests
            self._tokens -= tokens

    def settle(self, reserved: int, used: int) -> None:
        """See Limiter. What is more than a slice goes back with the next lease."""
        self._tokens += reserved - used
        more = max(0, self._tokens - self._slice)
        self._tokens = self._tokens - more
        self._unused = self._unused + more


class Pause:
    """A pause that holds for everybody who passes here."""

    def __init__(self, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._until = clock()

    @property
    def is_open(self) -> bool:
        """Whether nobody is made to wait."""
        return self._clock() >= self._until

    def pause(self, seconds: float) -> None:
        """Let nobody pass for so long; a longer pause under way stays."""
        self._until = max(self._until, self._clock() + seconds)

    async def passed(self) -> None:
        """Wait until the gate is open."""
        while (wait := self._until - self._clock()) > 0:
            await self._sleep(wait)


class InFlight:
    """How many requests are in flight: additive increase, multiplicative decrease, never above `bound`.

    As TCP does it (RFC 5681): it begins with one, so a wrong key or address costs one request; every answer admits one
    more up to the threshold, and 1/limit more beyond; an overload halves limit and threshold. Requests that left
    before the last halving do not halve again.
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
        """A place in flight, waited for in order; gives what `overloaded` wants back."""
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
                    self._wake()  # whoever comes next takes the place that was offered
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
        """The server answered, and did not complain of overload."""
        step = 1.0 if self._limit < self._threshold else 1.0 / self._limit
        self._limit = min(self._bound, self._limit + step)
        self._wake()

    def overloaded(self, epoch: int) -> None:
        """The server asked to slow down, in answer to a request of the slot that gave `epoch`."""
        if epoch == self._epoch:
            self._epoch += 1
            self._limit = self._threshold = max(1.0, self._limit / 2)
