"""Whether a server is there: one request that asks it no question."""

from __future__ import annotations

from anmi_ray.config.endpoint import ServerConfig
from anmi_ray.core.errors import JudgeError
from anmi_ray.judging.http.access import place, reach_remedy
from anmi_ray.judging.http.connections import Connections, Lost

_WAIT_S = 3.0
_NOT_READY = (502, 503, 504)  # of a proxy whose server is not up, or a server that still loads its model
_OFFLINE = "anmi run and anmi plan leave this check out with --offline"


async def check(config: ServerConfig) -> None:
    """Ask a server for its models; any answer but a refused key will do, as many servers know no such list.

    Raises ConfigError for a key or an address that may not be used, JudgeError where the server does not answer.
    """
    connections = Connections(config, connect_s=_WAIT_S)
    try:
        await connections.open()
        found = await connections.get("/models", _WAIT_S)
    finally:
        await connections.close()
    if isinstance(found, Lost):
        said = found.detail or found.reason
        raise JudgeError(f"cannot be reached: {said}", place(config), f"{reach_remedy(said)}; {_OFFLINE}")
    if found.status == 401:
        what = "wants a key" if config.key_env is None else f"refuses the key in {config.key_env}"
        raise JudgeError(f"{what} (HTTP 401)", place(config), f"check key_env and the key; {_OFFLINE}")
    if found.status in _NOT_READY:
        what = f"is not ready (HTTP {found.status})"
        raise JudgeError(what, place(config), f"wait until it serves its model; {_OFFLINE}")
