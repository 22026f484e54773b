"""Upload an exported folder to the Hugging Face hub, as a private repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from anmi_ray.core.errors import AnmiError, ConfigError, StoreError, first_line

TOKEN = "HF_TOKEN"
_OPTION = "--push-to-hub"
_BAD_METADATA = "Invalid metadata in README.md"  # start of the client's message


def check(repository: str) -> str:
    """Return the token of the environment. Raises ConfigError without one, or if `repository` is malformed."""
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
    """Upload `folder` as one commit; say where it is. A new repository is created as private.

    An existing repository keeps its visibility and loses files that `folder` lacks. HF_ENDPOINT names another hub.
    Raises ConfigError as `check`, or if the hub rejects the card's metadata; StoreError if it cannot be reached or
    refuses. The folder stays.
    """
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = HfApi(token=check(repository))
    kept = f"{folder} is written: repeat the command with another folder, or upload it with `hf upload`"
    try:
        address = api.create_repo(repository, repo_type=kind, private=True, exist_ok=True)
        private = api.repo_info(repository, repo_type=kind).private
        message = "Exported by anmi_ray"
        # an older model's files would be read as this one's; the client keeps .gitattributes
        api.upload_folder(
            repo_id=repository, folder_path=folder, repo_type=kind, commit_message=message, delete_patterns="*"
        )
    except HfHubHTTPError as error:
        remedy = f"check that the token of {TOKEN} may write there; {kept}"
        raise StoreError(f"the hub refuses: {first_line(error)}", f"{api.endpoint} {repository}", remedy) from None
    except (httpx2.HTTPError, OfflineModeIsEnabled) as error:
        remedy = f"check the network, HF_ENDPOINT and HF_HUB_OFFLINE; {kept}"
        raise StoreError(f"cannot be reached: {first_line(error)}", api.endpoint, remedy) from None
    except ValueError as error:  # rejected metadata; the client has no class for it
        raise _not_understood(error, folder, api.endpoint, kept) from None
    if private is None:
        return f"on the hub: {address}"
    where = "private on the hub" if private else "public on the hub, as its repository is"
    return f"{where}: {address}"


def _not_understood(error: ValueError, folder: Path, endpoint: str, kept: str) -> AnmiError:
    """Return the error if the hub rejects a card's metadata or does not answer JSON."""
    if not str(error).startswith(_BAD_METADATA):
        remedy = f"check HF_ENDPOINT, and proxies on the way to the hub; {kept}"
        return StoreError(f"expected an answer of the hub, got: {first_line(error)}", endpoint, remedy)
    reasons = [line.strip("- ") for line in str(error).splitlines()[1:]]
    what = f"the hub refuses the card's metadata: {'; '.join(reasons) or 'it does not say why'}"
    if any("license" in reason for reason in reasons):
        return ConfigError(what, "--license", f"give an id of the hub's list, or `other`; {kept}")
    return ConfigError(what, str(folder / "README.md"), f"correct its head; {kept}")
