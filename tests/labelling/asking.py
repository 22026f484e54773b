"""The page of `anmi label` over HTTP, as a browser asks for it."""

from __future__ import annotations

import http.client
import re
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import urlencode, urlsplit


@dataclass(frozen=True)
class Shown:
    """A page: its status, headers (lower case) and body, and what it shows of a pair (at is None on other pages)."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def at(self) -> int | None:
        found = re.search(r"at=(\d+)&amp;side=left", self.body)
        return int(found[1]) if found else None

    @property
    def titles(self) -> list[str]:
        return [unescape(title) for title in re.findall(r"<h2>(.*?)</h2>", self.body, re.S)]

    @property
    def texts(self) -> list[str]:
        return [unescape(text) for text in re.findall(r"</h2><p>(.*?)</p>", self.body, re.S)]

    @property
    def answered(self) -> int:
        found = re.search(r">(\d+) of \d+ (?:<progress|pairs)", self.body)
        assert found, self.body
        return int(found[1])


def ask(address: str, method: str = "GET", headers: dict[str, str] | None = None, **query: Any) -> Shown:
    """Send a request to the page's address."""
    at = urlsplit(address)
    connection = http.client.HTTPConnection(at.netloc, timeout=30)
    try:
        connection.request(method, f"{at.path}?{urlencode(query)}" if query else at.path, headers=headers or {})
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Shown(answer.status, found, answer.read().decode())
    finally:
        connection.close()


def look(address: str, person: str, **query: Any) -> Shown:
    """A person's pair."""
    shown = ask(address, person=person, **query)
    assert shown.status == 200, shown.body
    return shown


def answer(address: str, person: str, at: int, side: str) -> Shown:
    """Answer a pair; what the person sees then."""
    sent = ask(address, "POST", person=person, at=at, side=side)
    assert sent.status == 303, sent.body
    return look(address, person)
