"""The error taxonomy: messages with place and remedy, and a journey through pickle, as Ray sends them."""

from __future__ import annotations

import errno
import pickle
import re
from pathlib import Path

import pytest

import anmi_ray
from anmi_ray.core import errors
from anmi_ray.core.errors import AnmiError, BudgetError, LostError, StoreError, from_os_error

CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, AnmiError)]


def test_every_error_is_defined_in_one_module() -> None:
    sources = (path.read_text(encoding="utf-8") for path in Path(anmi_ray.__file__).parent.rglob("*.py"))
    assert sum(len(re.findall(r"^class \w+\(\w*Error\)", text, re.MULTILINE)) for text in sources) == len(CLASSES) - 1


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("rest", [(), ("here",), ("here", "do that"), (None, "do that")])
def test_errors_survive_pickling(cls: type[AnmiError], protocol: int, rest: tuple[str | None, ...]) -> None:
    error = cls("went wrong", *rest)
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert (copy.message, copy.place, copy.remedy) == (error.message, error.place, error.remedy)
    # EX_TEMPFAIL: the same command may succeed
    assert copy.exit_code == {LostError: 75, BudgetError: 5}.get(cls, 2)


def test_message_format() -> None:
    assert str(AnmiError("bad")) == "bad"
    assert str(AnmiError("bad", "a.yaml")) == "a.yaml: bad"
    assert str(AnmiError("bad", remedy="use 1")) == "bad\n  remedy: use 1"
    assert str(AnmiError("bad", "a.yaml", "use 1")) == "a.yaml: bad\n  remedy: use 1"


@pytest.mark.parametrize(
    ("error", "message", "remedy"),
    [
        (OSError(errno.ENOSPC, "x"), "no space left", "free space"),
        (OSError(errno.EDQUOT, "x"), "disk quota exceeded", "free space"),
        (OSError(errno.EFBIG, "x"), "file too large for this filesystem or user", "raise the limit"),
        (OSError(errno.EACCES, "x"), "permission denied", "grant write permission"),
        (OSError(errno.EPERM, "x"), "operation not permitted", "grant write permission"),
        (OSError(errno.EROFS, "x"), "read-only filesystem", "writable root"),
        (OSError(errno.ENOENT, "x"), "no such file or folder", "check the path"),
        (FileNotFoundError("said without a number"), "no such file or folder", "check the path"),
        (OSError(errno.ENOTDIR, "x"), "expected a folder, got a file", "remove that file"),
        (OSError(errno.EEXIST, "x"), "expected a folder, got a file", "remove that file"),
        (OSError(errno.EISDIR, "x"), "expected a file, got a folder", "remove that folder"),
        (OSError(errno.ENAMETOOLONG, "x"), "path too long", "shorter root"),
        (OSError(errno.EIO, "Input/output error"), "[Errno 5] Input/output error", "reachable and writable"),
        (OSError("AWS Error NO_SUCH_BUCKET"), "AWS Error NO_SUCH_BUCKET", "create the bucket"),
        (OSError("AWS Error ACCESS_DENIED"), "AWS Error ACCESS_DENIED", "may read, list and write"),
        (OSError("AWS Error INVALID_ACCESS_KEY_ID"), "AWS Error INVALID_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"),
        (OSError("SIGNATURE_DOES_NOT_MATCH"), "SIGNATURE_DOES_NOT_MATCH", "AWS_SECRET_ACCESS_KEY"),
        (OSError("NETWORK_CONNECTION"), "NETWORK_CONNECTION", "endpoint"),
        (OSError("something else"), "something else", "reachable and writable"),
        (TimeoutError(), "TimeoutError", "reachable and writable"),
    ],
)
def test_from_os_error(error: OSError, message: str, remedy: str) -> None:
    made = from_os_error(error, "root/file")
    assert type(made) is StoreError
    assert made.message == message
    assert made.place == "root/file"
    assert made.remedy is not None
    assert remedy in made.remedy
