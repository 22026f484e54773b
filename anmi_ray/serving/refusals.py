"""Error answers: one JSON message under the keys that each client reads."""

from __future__ import annotations

from anmi_ray.core.errors import visible

_MOST = 400  # characters of a message: quoted texts may be of any length
_TYPES = {401: "authentication_error", 413: "request_too_large", 429: "overloaded"}


class RefusalError(Exception):
    """A refused request: HTTP status, message, and seconds until it may be sent again."""

    def __init__(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(status, message, retry_after_s)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def content(self) -> dict[str, object]:
        """Cohere's clients read message, Jina's and LangChain's detail, OpenAI's and vLLM's the error."""
        text = visible(self.message)
        text = text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"message": text, "detail": text, "error": {"message": text, "type": kind, "code": self.status}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        found: dict[str, str] = {}
        if self.retry_after_s is not None:
            found["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            found["WWW-Authenticate"] = "Bearer"
        return found
