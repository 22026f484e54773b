"""The page for people: one file without anything from elsewhere, which runs its own script and no other."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources


@lru_cache(maxsize=1)
def search() -> tuple[str, int, dict[str, str]]:
    """The page to try queries: its HTML, its status, and headers that let a browser run what stands in it alone."""
    folder = resources.files("anmi_ray.serving").joinpath("page")
    page, style, script = (folder.joinpath(f"search.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
    return page.replace("/* style */", style).replace("/* script */", script), 200, headers


def _hash(content: str) -> str:
    """What a policy calls an element's content by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
