"""An exported folder as a repository of the Hugging Face hub, private until its owner opens it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from anmi_ray.core.errors import ConfigError, StoreError, first_line

TOKEN = "HF_TOKEN"
_OPTION = "--push-to-hub"


def check(repository: str) -> str:
    """The token of the environment. Raises ConfigError where there is none, or `repository` names none."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError(first_line(error), _OPTION, "give ORGANISATION/NAME") from None
    token = os.environ.get(TOKEN, "")
    if not token:
        what = f"the hub wants a token, and the environment has no {TOKEN}"
        raise ConfigError(what, _OPTION, f"export {TOKEN} with a token that may write; it is written nowhere")
    return token


def push(folder: Path, repository: str, kind: Literal["model", "dataset"]) -> str:
    """Upload `folder` as one commit, to a repository that is made private where there is none; returns its address.

    HF_ENDPOINT names another hub than huggingface.co. Raises ConfigError as `check`, StoreError where the hub cannot be
    reached or refuses; the folder stays.
    """
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = HfApi(token=check(repository))
    kept = f"{folder} is written: give the same command with another folder, or upload it with `hf upload`"
    try:
        address = api.create_repo(repository, repo_type=kind, private=True, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, repo_type=kind, commit_message="Exported by anmi_ray")
    except HfHubHTTPError as error:
        remedy = f"check that the token of {TOKEN} may write there; {kept}"
        raise StoreError(f"the hub refuses: {first_line(error)}", f"{api.endpoint} {repository}", remedy) from None
    except (httpx2.HTTPError, OfflineModeIsEnabled) as error:
        remedy = f"check the network, HF_ENDPOINT and HF_HUB_OFFLINE; {kept}"
        raise StoreError(f"cannot be reached: {first_line(error)}", api.endpoint, remedy) from None
    return str(address)
