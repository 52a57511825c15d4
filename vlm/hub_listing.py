"""What a hub offers for one model: commit, files, sizes and checksums, asked within a deadline."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import httpx2
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling

from vlm.architecture import CONFIG_FILE
from vlm.errors import DownloadError, ModelNotFoundError
from vlm.hub_cache import INDEX_FILE, OPTIONAL_FILES, PLAIN_NAME, TEXT_FILES

logger = logging.getLogger(__name__)

CONTACT_TIMEOUT_S = 5.0
"""How long the hub may take to answer at all; name look-ups that hang count too."""

WANTED = frozenset((*TEXT_FILES, *OPTIONAL_FILES, INDEX_FILE))
WEIGHTS_NAME = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
CHECKSUM = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

Result = TypeVar("Result")


@dataclass(frozen=True)
class HubFile:
    """One file to fetch; `checksum` names its blob: sha256 of a large file, else git's sha1."""

    name: str
    size_bytes: int
    checksum: str


@dataclass(frozen=True)
class HubListing:
    """The files of one model at one commit that this app needs, small ones first."""

    hub_id: str
    endpoint: str
    commit: str
    files: tuple[HubFile, ...]

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    def url(self, file: HubFile) -> str:
        """Return where a file is fetched from."""
        return f"{self.endpoint}/{self.hub_id}/resolve/{self.commit}/{file.name}"


def list_model(hub_id: str, endpoint: str | None = None) -> HubListing:
    """Ask the hub what the newest commit of a model holds, within a few seconds.

    Raises ModelNotFoundError when the hub has no such model for this token, DownloadError
    when the hub cannot be asked.
    """
    endpoint = endpoint or constants.ENDPOINT
    if constants.is_offline_mode():
        raise DownloadError(
            f"{hub_id} is not in the local cache, and HF_HUB_OFFLINE forbids fetching it. "
            "Unset HF_HUB_OFFLINE, or give a folder with --model FOLDER."
        )
    api = HfApi(endpoint=endpoint)
    try:
        info = _within(
            CONTACT_TIMEOUT_S,
            lambda: api.model_info(hub_id, timeout=CONTACT_TIMEOUT_S, files_metadata=True),
        )
    except TimeoutError:
        raise unreachable(endpoint, f"no answer within {CONTACT_TIMEOUT_S:.0f} s") from None
    except Exception as error:
        raise in_words(error, hub_id, endpoint) from error
    if not re.fullmatch(r"[0-9a-f]{40}", info.sha or ""):
        raise DownloadError(f"{endpoint} gave no commit for {hub_id}; check HF_ENDPOINT.")
    return HubListing(hub_id, endpoint, str(info.sha), _needed(hub_id, info.siblings or []))


def unreachable(endpoint: str, reason: str) -> DownloadError:
    """Return the error for a hub that does not answer."""
    return DownloadError(
        f"{endpoint} cannot be reached ({reason}). Check the network and a proxy (HTTPS_PROXY), "
        "or set HF_ENDPOINT to a mirror; then start again."
    )


def in_words(error: Exception, hub_id: str, endpoint: str) -> DownloadError | ModelNotFoundError:
    """Return what an exception of the hub's client means to a person."""
    if isinstance(error, GatedRepoError):
        return ModelNotFoundError(
            f"{hub_id} asks for its terms to be accepted: do so at {endpoint}/{hub_id}, then set "
            "HF_TOKEN to a token of the same account."
        )
    if isinstance(error, RepositoryNotFoundError):
        return ModelNotFoundError(
            f"{endpoint} has no model {hub_id} that may be read here. Check the spelling; for a "
            "private model set HF_TOKEN."
        )
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return ModelNotFoundError(
                f"{endpoint} refuses to give {hub_id} (HTTP {status}). Set HF_TOKEN to a valid "
                "token, or unset a wrong one."
            )
        return DownloadError(f"{endpoint} answered HTTP {status} for {hub_id}; try again later.")
    if isinstance(error, OfflineModeIsEnabled):
        return DownloadError(f"{hub_id} was not fetched: offline mode is on (HF_HUB_OFFLINE).")
    if isinstance(error, httpx2.HTTPError | OSError):
        return unreachable(endpoint, str(error) or type(error).__name__)
    return DownloadError(
        f"{endpoint} could not be asked for {hub_id} ({type(error).__name__}: {error}). "
        "Check HF_ENDPOINT and the model's name."
    )


def _needed(hub_id: str, siblings: list[RepoSibling]) -> tuple[HubFile, ...]:
    """Pick what the app needs from a repository's files, small ones first."""
    names = {sibling.rfilename for sibling in siblings}
    sharded = INDEX_FILE in names
    files = []
    for sibling in siblings:
        name = sibling.rfilename
        weights = WEIGHTS_NAME.fullmatch(name)
        # A repository that offers both forms needs to be fetched only once.
        if not PLAIN_NAME.fullmatch(name) or not (name in WANTED or weights):
            continue
        if weights and sharded != bool(weights.group(1)):
            continue
        checksum = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        size = sibling.lfs.size if sibling.lfs else sibling.size
        if size is None or not CHECKSUM.fullmatch(checksum or ""):
            raise DownloadError(f"The hub gave no size or checksum for {name} of {hub_id}.")
        files.append(HubFile(name, size, str(checksum)))
    if CONFIG_FILE not in names or not any(WEIGHTS_NAME.fullmatch(file.name) for file in files):
        raise ModelNotFoundError(
            f"{hub_id} holds no {CONFIG_FILE} with safetensors weights, so it cannot be loaded. "
            "Choose a Qwen3-VL Instruct model such as Qwen/Qwen3-VL-2B-Instruct (not GGUF)."
        )
    return tuple(sorted(files, key=lambda file: (file.size_bytes, file.name)))


def _within(seconds: float, work: Callable[[], Result]) -> Result:
    """Run `work` in a thread of its own and give up after `seconds`. Raises TimeoutError.

    A name look-up has no time-out of its own and may hang for half a minute; the thread is a
    daemon so that it cannot hold up the end of the program either.
    """
    results: list[Result] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="hub-contact", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
