"""The error taxonomy. Every error a user can cause names the place, what is allowed there, and the remedy.

Errors cross process boundaries (Ray pickles them), so each is rebuilt from its plain arguments.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NAMED = 5  # documents named in an error
_PLACE = 300  # characters of a place that are shown


class AnmiError(Exception):
    """Base of all errors that are shown to a user as one message, without a traceback, with exit code 2.

    `place` is a file, row, setting or stage; `remedy` says what to do next.

    >>> print(AnmiError("expected 3 columns, got 4", "rows.csv:7"))
    rows.csv:7: expected 3 columns, got 4
    """

    exit_code = 2
    most = 0  # characters of the message that are shown, where there is a limit

    def __init__(self, message: str, place: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, place, remedy)
        self.message = message
        self.place = place
        self.remedy = remedy

    def __str__(self) -> str:
        message = _without_middle(visible(self.message), self.most)
        text = f"{_without_middle(self.place, _PLACE)}: {message}" if self.place else message
        return visible(f"{text}\n  remedy: {self.remedy}" if self.remedy else text)


def _without_middle(text: str, most: int) -> str:
    """Truncate a text to a number of characters; 0: no limit."""
    return f"{text[: most - 50]} … {text[-50:]}" if most and len(text) > most else text


def visible(text: str) -> str:
    r"""`text` with control characters, which a terminal would obey, as Python writes them; lines stay lines.

    >>> visible("id \x1b[31m")
    'id \\x1b[31m'
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class ConfigError(AnmiError):
    """A setting is unknown, out of range, or contradicts another."""

    most = 600  # what was typed may be of any length


class ProblemsError(ConfigError):
    """Several problems found together, a line each, see `combined`."""

    most = 0


class DataError(AnmiError):
    """Input data is missing, malformed or inconsistent beyond what may be rejected row by row."""

    most = 400  # what is quoted may be of any length


class StoreError(AnmiError):
    """The storage refused: full, read-only, unreachable, or holding something else than expected."""


class DamagedError(StoreError):
    """A file under a root is gone, or is not what was written there; `place` is its full name."""


class LostError(StoreError):
    """A process or a node was lost, or did not start, too often; running again resumes.

    Its exit code is sysexits.h's EX_TEMPFAIL: the same command may be started again.
    """

    exit_code = 75


class ClusterError(AnmiError):
    """The cluster's job server is out of reach, or refuses what is asked of it."""


class FitError(AnmiError):
    """A numerical fit has no answer under the given settings (separation or disconnection without a prior)."""


class NoMaximumError(FitError):
    """Plain maximum likelihood has no finite or no unique maximum for some query.

    query, documents: the query, and documents to look at: hashed ids in hexadecimal, or the user's own ids if known.
    """

    def __init__(
        self,
        message: str,
        place: str | None = None,
        remedy: str | None = None,
        query: str = "",
        documents: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, place, remedy)
        self.query = query
        self.documents = documents

    def __str__(self) -> str:
        shown = ", ".join(self.documents[:_NAMED])
        more = f" and {len(self.documents) - _NAMED} more" if len(self.documents) > _NAMED else ""
        message = f"{self.message}; see documents {shown}{more}" if self.documents else self.message
        place = ", ".join(filter(None, (self.place, self.query and f"query {self.query}")))
        return str(AnmiError(message, place or None, self.remedy))


class JudgeError(AnmiError):
    """A judge cannot be asked: its server is out of reach, or refuses the key, the model or every question."""


class BudgetError(JudgeError):
    """A budget was spent before all questions were asked; answers are kept. A separate exit code: the user decides."""

    exit_code = 5


class TrainingError(AnmiError):
    """Training cannot continue (non-finite loss, constant scores, out of memory)."""


def caught(check: Callable[..., object], *args: object) -> Iterator[AnmiError]:
    """The error that `check(*args)` raises, if any."""
    try:
        check(*args)
    except AnmiError as error:
        yield error


def combined(problems: Iterable[AnmiError]) -> AnmiError | None:
    """Combine problems into one error, each on a line with its remedy; None without problems."""
    lines = {" ".join(str(problem).replace("\n  remedy:", "; remedy:").split()): problem for problem in problems}
    if len(lines) < 2:
        return next(iter(lines.values()), None)
    return ProblemsError("\n  ".join([f"{len(lines)} problems, nothing was started", *lines]))


def refuse(problems: Iterable[AnmiError]) -> None:
    """Raise what `combined` makes of problems, if there are any."""
    if problem := combined(problems):
        raise problem


def facts_of(error: AnmiError) -> dict[str, Any]:
    """An error as what a program reads: its kind, message, place, remedy, and the exit code of the command."""
    kind = type(error).__name__.removesuffix("Error").lower()
    facts = {"kind": kind, "message": error.message, "place": error.place, "remedy": error.remedy}
    return {"error": facts, "exit_code": error.exit_code}


def flatten(error: AnmiError) -> str:
    """An error as text that `rebuild` makes an error of, for where an exception cannot pass."""
    return json.dumps([type(error).__name__, *error.args])


def rebuild(text: str) -> AnmiError:
    """The inverse of `flatten`; a class that is not one of these comes out as their base."""
    name, *args = json.loads(text)
    kinds = (ConfigError, DataError, StoreError, DamagedError, LostError, ClusterError, FitError, JudgeError)
    kinds += (BudgetError, TrainingError, ProblemsError)
    return {kind.__name__: kind for kind in kinds}.get(name, AnmiError)(*args)


_AGAIN = "running again resumes"
_OTHER_ROOT = "give another root with --root"
_BY_ERRNO = {
    errno.ENOSPC: ("no space left", f"free space or {_OTHER_ROOT}; {_AGAIN}"),
    errno.EDQUOT: ("disk quota exceeded", f"free space or {_OTHER_ROOT}; {_AGAIN}"),
    errno.EFBIG: ("file too large for this filesystem or user", f"raise the limit or {_OTHER_ROOT}; {_AGAIN}"),
    errno.EACCES: ("permission denied", f"grant write permission or {_OTHER_ROOT}"),
    errno.EPERM: ("operation not permitted", f"grant write permission or {_OTHER_ROOT}"),
    errno.EROFS: ("read-only filesystem", "give a writable root with --root"),
    errno.ENOENT: ("no such file or folder", "check the path"),
    errno.ENOTDIR: ("expected a folder, got a file", f"remove that file or {_OTHER_ROOT}"),
    errno.EEXIST: ("expected a folder, got a file", f"remove that file or {_OTHER_ROOT}"),
    errno.EISDIR: ("expected a file, got a folder", f"remove that folder or {_OTHER_ROOT}"),
    errno.ENAMETOOLONG: ("path too long", "give a shorter root with --root"),
}
# What object storage says in words (pyarrow names the AWS error and gives no errno).
_BY_WORD = {
    "NO_SUCH_BUCKET": f"create the bucket or {_OTHER_ROOT}",
    "ACCESS_DENIED": "check that the credentials may read, list and write the bucket",
    "INVALID_ACCESS_KEY": "check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or the profile)",
    "SIGNATURE_DOES_NOT_MATCH": "check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or the profile)",
    "NETWORK_CONNECTION": f"check the endpoint, the region and the network; {_AGAIN}",
}


def from_os_error(error: OSError, place: str) -> StoreError:
    """Turn an operating-system or filesystem error into the message a user can act on."""
    code = error.errno or (errno.ENOENT if isinstance(error, FileNotFoundError) else 0)
    if code in _BY_ERRNO:
        return StoreError(_BY_ERRNO[code][0], place, _BY_ERRNO[code][1])
    text = str(error) or type(error).__name__
    remedies = (remedy for word, remedy in _BY_WORD.items() if word in text)
    return StoreError(text, place, next(remedies, f"check that the storage is reachable and writable; {_AGAIN}"))


# Of Rust's libraries, such as safetensors, which give no errno.
_DISK_IS_FULL = ("No space left on device", "os error 28", "os error 122")


def disk_is_full(error: BaseException | None, place: str | None = None) -> bool:
    """True if an error reports a full disk, or `place` has less than a megabyte left (torch says nothing of it)."""
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(
        text in str(error) for text in _DISK_IS_FULL
    ):
        return True
    return place is not None and shutil.disk_usage(place).free < 1 << 20


def from_file_error(error: OSError, place: str) -> StoreError:
    """Convert an error about a single file given to a command."""
    converted = from_os_error(error, place)
    remedy = (converted.remedy or "").replace(_OTHER_ROOT, "give another path").replace("root with --root", "path")
    return StoreError(
        converted.message, place, remedy.replace("write permission", "permission").removesuffix(f"; {_AGAIN}")
    )


# Of torch's allocator, the driver where a kernel finds no room, and CUDA's libraries.
GPU_IS_FULL = ("CUDA out of memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")


def out_of_gpu_memory(error: BaseException) -> bool:
    """True for an error about a GPU's memory; imports no torch."""
    return type(error).__name__ == "OutOfMemoryError" or any(word in str(error) for word in GPU_IS_FULL)


def first_line(error: BaseException, most: int = 200) -> str:
    """The first line of a library's error, at most `most` characters; its class if the message is empty.

    >>> first_line(RuntimeError("no room\\nat all")), first_line(KeyError())
    ('no room', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:most]


@contextmanager
def gpu_memory_named(place: str, remedy: str) -> Generator[None, None, None]:
    """Convert an error about a GPU's memory to a ConfigError."""
    try:
        yield
    except RuntimeError as error:
        if not out_of_gpu_memory(error):
            raise
        what = f"out of memory, the GPU's does not hold the model and a batch: {first_line(error)}"
        raise ConfigError(what, place, remedy) from error
