"""Calls per second of the judges' client against a local server, beside its HTTP library alone and aiohttp."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import aiohttp
import httpx2

from anmi_ray.judging.http.client import ChatClient
from anmi_ray.judging.http.dispatch import Result, ask_all
from tests.judging.serving import Chat, ask, one_by_one, serving

CALLS = 3000
TEXT = "word " * 600  # two passages


async def ours(chat: Chat, width: int) -> None:
    got: list[Result] = []
    async with ChatClient(chat.config(concurrency=width)) as client:
        await ask_all(client, one_by_one((i.to_bytes(4, "big"), ask(f"{i} {TEXT}")) for i in range(CALLS)), got.extend)
    assert len(got) == CALLS


def body(i: int) -> bytes:
    return json.dumps({"model": "judge", "messages": ask(f"{i} {TEXT}")}).encode()


async def with_httpx2(chat: Chat, width: int) -> None:
    left = iter(range(CALLS))
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=width)
    async with httpx2.AsyncClient(limits=limits, timeout=None, headers={"Content-Type": "application/json"}) as session:

        async def work() -> None:
            for i in left:
                json.loads((await session.post(f"{chat.url}/v1/chat/completions", content=body(i))).content)

        await asyncio.gather(*(work() for _ in range(width)))


async def with_aiohttp(chat: Chat, width: int) -> None:
    left = iter(range(CALLS))
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def work() -> None:
            for i in left:
                async with session.post(f"{chat.url}/v1/chat/completions", data=body(i)) as response:
                    json.loads(await response.read())

        await asyncio.gather(*(work() for _ in range(width)))


def main() -> None:
    ways: dict[str, Callable[[Chat, int], Awaitable[None]]] = {
        "anmi_ray": ours,
        "httpx2, one pool": with_httpx2,
        "aiohttp": with_aiohttp,
    }
    with serving() as port:
        chat = Chat(port, "bench")
        for width in (8, 64, 256):
            chat.setup(latency_s=0.02)
            reference = 0.0
            for name, way in ways.items():
                wall, cpu = time.perf_counter(), time.process_time()
                asyncio.run(_run(way(chat, width)))
                wall, cpu = time.perf_counter() - wall, (time.process_time() - cpu) / CALLS
                reference = reference or cpu
                rate = f"{CALLS / wall:7,.0f} calls/s  {1e6 * cpu:6,.0f} µs of processor a call"
                print(f"{width:4} in flight  {name:17} {rate}  ({cpu / reference:.2f} of ours)")


async def _run(work: Awaitable[None]) -> None:
    await work


if __name__ == "__main__":
    main()
