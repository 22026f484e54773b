"""A chat-completions server that misbehaves as told: a process of its own, with its own log of what it was sent.

Started as `python chat_server.py`, it prints its port. POST /NAME/setup {"faults": {action: share}, "latency_s", "key",
"model", "mixed", "system", "max_tokens", "streams", "blocked": {words: action}} opens a server under /NAME; its
questions go to /NAME/v1/chat/completions; GET /NAME/log gives a list of {t, question, visit, action, active}, GET
/NAME/answered the number of its answers. What a question meets is drawn from a hash of it and of how often it was
asked, but where it holds blocked words; or its text prescribes it: "script 500 429:1 ok", one action a visit, the last
one for all later ones. Who is asked for queries writes them by a grammar (`written`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from aiohttp import web

WORDS = {
    "400": {"message": "Unsupported parameter: 'seed'", "type": "invalid_request_error", "code": None},
    "403": {"message": "Project does not have access", "code": "forbidden"},
    "404": {"message": "The model `x` does not exist", "code": "model_not_found"},
    "context": {"message": "This model's maximum context length is 8192 tokens", "code": "context_length_exceeded"},
    "filtered": {"message": "The response was filtered", "code": "content_filter"},
    "renamed": {"message": "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."},
    "quota": {"message": "You exceeded your current quota, please check your billing", "code": "insufficient_quota"},
}
LOGS = (-0.1, -2.4, -9999.0)
STATUS = {"context": 400, "renamed": 400, "filtered": 400, "quota": 429}


@dataclass
class Served:
    faults: dict[str, float] = field(default_factory=dict)
    latency_s: float = 0.0
    key: str | None = None
    model: str | None = None
    mixed: bool | str = False
    system: bool = True
    max_tokens: bool = True
    streams: bool = False
    blocked: dict[str, str] = field(default_factory=dict)
    active: int = 0
    visits: Counter[str] = field(default_factory=Counter)
    log: list[dict[str, Any]] = field(default_factory=list)


SERVED: dict[str, Served] = {}


def draw(served: Served, question: str, visit: int) -> str:
    """The action that a question meets at its n-th visit."""
    if question.startswith("script "):
        actions = question.split()[1:]
        return actions[min(visit, len(actions) - 1)]
    for words, action in served.blocked.items():
        if words in question:
            return action
    uniform = int.from_bytes(hashlib.sha256(f"{visit} {question}".encode()).digest()[:8], "big") / 2**64
    for action, share in served.faults.items():
        if uniform < share:
            return action
        uniform -= share
    return "ok"


def answer(
    text: str, model: str, finish: str = "stop", logprobs: bool = False, reasoning: Sequence[str] = ()
) -> dict[str, Any]:
    """A body that says `text`; its log-probabilities are also those of the reasoning, as behind a reasoning parser."""
    words = re.findall(r"\s*\S+", text) or [""]
    other = {"A": "B", "yes": "no", "no": "yes"}.get(words[0], "A")
    top = (words[0], other, f" {words[0]}")
    tokens = [{"token": token, "logprob": value} for token, value in zip(top, LOGS, strict=True)]
    positions = [{**tokens[0], "top_logprobs": tokens}, *({"token": word, "logprob": -0.1} for word in words[1:])]
    before = [{"token": token, "logprob": -0.2, "top_logprobs": []} for token in reasoning]
    thought = {"reasoning_content": "".join(reasoning)} if reasoning else {}
    return {
        "model": f"{model}-0001",
        "choices": [
            {
                "message": {"role": "assistant", "content": text, **thought},
                "finish_reason": finish,
                "logprobs": {"content": before + positions} if logprobs else None,
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 40}},
    }


PART = re.compile(r"<([\w-]+)-(\w+)>\n(.*?)\n</\1-\2>", re.DOTALL)


def by_words(question: str) -> str:
    """The document that holds more of the query's words; of one document, whether it holds half of them."""
    query, *documents = (set(re.findall(r"\w{4,}", part[2].lower())) for part in PART.findall(question))
    held = [len(query & document) for document in documents]
    if len(held) == 1:
        return "yes" if 2 * held[0] >= len(query) else "no"
    return "B" if held[1] > held[0] else "A"


def word(question: str, mixed: bool | str) -> str:
    """A of two documents, or A or B by a hash of the question; of one, yes or no by it. mixed "words": `by_words`."""
    if mixed == "words":
        return by_words(question)
    even = hashlib.sha256(question.encode()).digest()[0] % 2 == 0
    if "yes or no" in question:
        return "yes" if even else "no"
    return "B" if mixed and even else "A"


WANTED = re.compile(r"^(\d+) of kind (\w+)$", re.MULTILINE)
SHOWN = re.compile(r"<document-A-(\w+)>\n(.*)\n</document-A-\1>", re.DOTALL)
FRAMES = {
    "keyword": "{0} {1} {2}",
    "question": "How do I get {0} to work with {1} and {2}?",
    "example": "{0} versus {1}, {2} too",
}


def rank(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def written(question: str) -> str:
    """What a writer of queries answers, by a grammar over the longer words of the document that it is shown.

    Every tenth query is bad: a sentence of its document, an escape, or nothing. "" where no queries are asked for.
    """
    wanted = WANTED.findall(question)
    shown = SHOWN.search(question)
    if not wanted or shown is None:
        return ""
    text = shown.group(2)
    terms = sorted({w.lower() for w in re.findall(r"[A-Za-z]{5,}", text)}, key=rank) or ["nothing"]
    sentences = [part.strip() for part in re.split(r"[.\n]", text) if len(part.split()) > 5]
    queries: dict[str, list[str]] = {}
    for number, kind in wanted:
        for turn in range(int(number)):
            picked = [terms[(3 * turn + place) % len(terms)] for place in range(3)]
            bad = [sentences[0] if sentences else "", "turn \x1b[31m red wheels", " "]
            chance = rank(f"{kind} {turn} {text}")
            query = bad[chance[1] % 3] if chance[0] < 26 else FRAMES.get(kind, "{0} {1}").format(*picked)
            queries.setdefault(kind, []).append(query)
    return json.dumps(queries)


async def drip(request: web.Request, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for position in range(len(body)):
        await response.write(body[position : position + 1])
        await asyncio.sleep(0.2)
    return response


def reset(request: web.Request) -> None:
    """Close the connection with a reset instead of a farewell."""
    assert request.transport is not None
    connection = request.transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.transport.abort()


async def perform(request: web.Request, action: str, asked: dict[str, Any], mixed: bool | str) -> web.StreamResponse:
    """Do what `action` says; those with a colon carry the Retry-After."""
    kind, _, wait = action.partition(":")
    question = asked["messages"][-1]["content"]
    said = "wrong letters" if kind == "wrong" else written(question) or word(question, mixed)
    good = answer(said, asked["model"], logprobs=bool(asked.get("logprobs")))
    if kind == "plain":  # as a server that ignores logprobs
        return web.json_response(answer(said, asked["model"]))
    if kind == "uncounted":  # as a server that does not count tokens
        return web.json_response({name: value for name, value in good.items() if name != "usage"})
    if kind in ("reasoned", "reasoning"):
        opposite = {"A": "B", "B": "A", "yes": "no", "no": "yes"}[said]
        thought = answer(said, asked["model"], logprobs=True, reasoning=(opposite, " is", " off", " topic"))
        if kind == "reasoning":  # as a server that gives the log-probabilities of the first tokens alone
            del thought["choices"][0]["logprobs"]["content"][4:]
        return web.json_response(thought)
    if kind == "no system":
        return web.json_response({"object": "error", "message": "System role not supported"}, status=400)
    if kind == "stream":
        return web.Response(text=f"data: {json.dumps(good)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")
    if kind in ("ok", "wrong"):
        return web.json_response(good)
    if kind == "hang":
        await asyncio.sleep(30)
    elif kind == "drip":
        return await drip(request, json.dumps(good).encode())
    elif kind == "reset":
        reset(request)
    elif kind == "invalid":
        return web.Response(text='{"choices": [{"mess', content_type="application/json")
    elif kind == "empty":
        return web.json_response(answer("", asked["model"]))
    elif kind == "cut":  # and what was said before, if anything
        return web.json_response(answer(wait, asked["model"], "length", bool(asked.get("logprobs"))))
    elif kind == "nochoices":
        return web.json_response(answer("", asked["model"]) | {"choices": []})
    elif kind == "echo":  # the key comes back in a body, as some gateways do
        key = request.headers.get("Authorization", "")
        return web.json_response({"error": {"message": f"bad header {key}", "type": key}}, status=int(wait or 400))
    elif kind == "echotext":
        return web.json_response(answer(request.headers.get("Authorization", ""), asked["model"]))
    elif kind == "redirect":
        return web.Response(status=307, headers={"Location": "http://127.0.0.1:1/"})
    elif kind == "date":
        return web.Response(status=429, headers={"Retry-After": formatdate(time.time() + float(wait), usegmt=True)})
    else:
        status = STATUS[kind] if kind in STATUS else int(kind)
        headers = {"Retry-After": wait} if wait else {}
        error = WORDS.get(kind, {"message": f"injected {status}"})
        return web.json_response({"error": error}, status=status, headers=headers)
    return web.Response(status=500)


async def complete(request: web.Request) -> web.StreamResponse:
    served = SERVED[request.match_info["name"]]
    asked = await request.json()
    question = asked["messages"][-1]["content"]
    visit = served.visits[question]
    served.visits[question] += 1
    served.active += 1
    action = draw(served, question, visit)
    if served.key is not None and request.headers.get("Authorization") != f"Bearer {served.key}":
        action = "echo:401"
    elif served.model is not None and asked["model"] != served.model:
        action = "404"
    elif not served.system and any(message["role"] == "system" for message in asked["messages"]):
        action = "no system"
    elif not served.max_tokens and "max_completion_tokens" not in asked:
        action = "renamed"
    elif served.streams and asked.get("stream") is not False:
        action = "stream"
    entry = {"t": time.monotonic(), "question": question, "visit": visit, "action": action, "active": served.active}
    entry["said"] = word(question, served.mixed)
    served.log.append(entry)
    try:
        if served.latency_s:
            await asyncio.sleep(served.latency_s)
        return await perform(request, action, asked, served.mixed)
    finally:
        served.active -= 1


async def setup(request: web.Request) -> web.Response:
    SERVED[request.match_info["name"]] = Served(**await request.json())
    return web.json_response({})


async def log(request: web.Request) -> web.Response:
    return web.json_response(SERVED[request.match_info["name"]].log)


async def answered(request: web.Request) -> web.Response:
    return web.json_response(sum(entry["action"] == "ok" for entry in SERVED[request.match_info["name"]].log))


async def main() -> None:
    app = web.Application()
    app.router.add_post("/{name}/v1/chat/completions", complete)
    app.router.add_post("/{name}/setup", setup)
    app.router.add_get("/{name}/log", log)
    app.router.add_get("/{name}/answered", answered)
    # a caller who leaves ends its handler, so that `active` counts callers
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, keepalive_timeout=600)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
