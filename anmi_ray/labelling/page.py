"""The page on which people answer: a FastAPI app for 127.0.0.1 that works with forms.

Every path starts with a token that only the printed address contains, which keeps out other users of the machine, other
sites in the browser, and (with the check of the Host header) DNS rebinding. Queries and documents are hostile: the
template escapes all of them, and the Content-Security-Policy allows no script but the page's own.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import jinja2
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

from anmi_ray.core.errors import ConfigError, StoreError
from anmi_ray.core.identity import digest
from anmi_ray.labelling.answers import Order, PersonAnswer, Question

HOST = "127.0.0.1"
_POLICY = "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; base-uri 'none'; form-action 'self'; "
_POLICY += "frame-ancestors 'none'"


@dataclass
class LabelPage:
    """The page for some people; call `serve`.

    queues: each person's pairs, in the order in which they are asked
    last: side of the answer that counts, by (person, pair)
    keep: stores an answer; raises StoreError if it cannot
    seed: of the orders in which documents are shown
    """

    queues: dict[str, list[Question]]
    last: dict[tuple[str, str], str]
    keep: Callable[[PersonAnswer], None]
    seed: int
    port: int = 0

    def __post_init__(self) -> None:
        try:
            self._socket = socket.create_server((HOST, self.port))
        except OSError as error:
            remedy = "choose another --port, or leave it out to use a free one"
            raise ConfigError(f"port {self.port} cannot be opened: {error.strerror}", "--port", remedy) from None
        self._token = secrets.token_urlsafe(18)
        self.address = f"http://{HOST}:{self._socket.getsockname()[1]}/{self._token}/"
        source = resources.files("anmi_ray.labelling").joinpath("page.html.j2").read_text(encoding="utf-8")
        self._template = jinja2.Template(source, autoescape=True, undefined=jinja2.StrictUndefined)
        app = FastAPI(openapi_url=None, dependencies=[Depends(self._check_token)])
        app.add_api_route("/{token}/", self._show, methods=["GET"], response_class=HTMLResponse)
        app.add_api_route("/{token}/", self._answer, methods=["POST"], response_class=RedirectResponse)
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
        # no access log: paths contain the token
        config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)

    def serve(self) -> None:
        """Answer requests until Ctrl-C, or until `server.should_exit` is set."""
        self.server.run(sockets=[self._socket])

    async def _check_token(self, token: str) -> None:
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            raise HTTPException(HTTPStatus.FORBIDDEN, "open the address that anmi label printed")

    async def _show(self, person: str = "", at: Annotated[int | None, Query(ge=0)] = None) -> HTMLResponse:
        """Show pair number `at` of a person, else their first unanswered one; without a person, the start page."""
        nonce = secrets.token_urlsafe(18)
        values: dict[str, Any] = {"person": person, "people": list(self.queues), "nonce": nonce, "query": None}
        if person:
            queue = self._queue(person)
            missing = [number for number, one in enumerate(queue) if (person, one.pair) not in self.last]
            at = [*missing, len(queue)][0] if at is None else min(at, len(queue))
            values |= {"at": at, "answered": len(queue) - len(missing), "total": len(queue)}
            if at < len(queue):
                question = queue[at]
                sides = ["a", "b"] if self._shown(person, question) == "ab" else ["b", "a"]
                given = self.last.get((person, question.pair))
                values |= {"query": question.query, "documents": [(side, getattr(question, side)) for side in sides]}
                values |= {"given": given}
        headers = {"Content-Security-Policy": _POLICY.format(nonce), "X-Content-Type-Options": "nosniff"}
        headers |= {"Referrer-Policy": "same-origin", "Cache-Control": "no-store"}
        return HTMLResponse(self._template.render(values), headers=headers)

    async def _answer(
        self, person: str, at: Annotated[int, Query(ge=0)], side: Literal["left", "right", "unsure"]
    ) -> RedirectResponse:
        """Store the answer to pair number `at`, then show the next pair. Runs on the event loop: one at a time."""
        if at >= len(queue := self._queue(person)):
            raise HTTPException(HTTPStatus.NOT_FOUND, "no such pair")
        pair = queue[at].pair
        shown = self._shown(person, queue[at])
        chosen = "unsure" if side == "unsure" else "a" if (side == "left") == (shown == "ab") else "b"
        if self.last.get((person, pair)) != chosen:  # else repeated by a page that is open twice
            try:
                self.keep(PersonAnswer(pair, person, chosen, shown, "page", time.time_ns()))
            except StoreError as error:
                raise HTTPException(HTTPStatus.INTERNAL_SERVER_ERROR, f"the answer was not stored: {error}") from None
            self.last[person, pair] = chosen
        return RedirectResponse(f"?{urlencode({'person': person})}", HTTPStatus.SEE_OTHER)

    def _queue(self, person: str) -> list[Question]:
        if person not in self.queues:
            raise HTTPException(HTTPStatus.FORBIDDEN, f"{person} is not among --people {','.join(self.queues)}")
        return self.queues[person]

    def _shown(self, person: str, question: Question) -> Order:
        """Draw by hash which document is on the left."""
        return "ab" if digest("people-shown", self.seed, person, question.pair)[0] & 1 else "ba"


def queues_of(
    questions: Sequence[tuple[Question, bool]], people: Sequence[str], answered: set[tuple[str, str]], seed: int
) -> dict[str, list[Question]]:
    """Return each person's pairs, in an order drawn by hash.

    questions: each with whether everyone answers it; the others go to one of `people`, or to whoever answered them
    answered: (person, pair)
    """
    owners = {pair: person for person, pair in sorted(answered)}
    for number, question in enumerate(question for question, everyone in questions if not everyone):
        owners.setdefault(question.pair, people[number % len(people)])
    return {
        person: sorted(
            (
                one
                for one, everyone in questions
                if everyone or owners[one.pair] == person or (person, one.pair) in answered
            ),
            key=lambda one, person=person: digest("people-order", seed, person, one.pair),
        )
        for person in people
    }
