"""Example configurations: `anmi init --example`."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from anmi_ray.core.errors import ConfigError, from_file_error

FOLDER = Path(__file__).resolve().parent / "configs"  # in a clone a link to jobs/configs
_REFERENCE = re.compile(r"jobs/configs/([\w-]+)\.yaml")


def examples() -> dict[str, str]:
    """Return the first sentence of each example, by name."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.yaml"))}
    comments = {name: re.sub(r"\n# ?", " ", text.split("\n#\n")[0]).removeprefix("# ") for name, text in texts.items()}
    return {name: re.split(r"(?<=\.)\s", comment)[0] for name, comment in comments.items()}


def write_example(name: str, to: Path | None = None) -> list[Path]:
    """Write an example to `to` (default: NAME.yaml), and next to it the examples it names; return the new files.

    Raise ConfigError for an unknown name or an existing file, StoreError if it cannot be written.
    """
    source = FOLDER / f"{name}.yaml"
    known = list(examples())
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"the examples are {', '.join(known)}"
        raise ConfigError(f"unknown example '{name}'", "anmi init --example", remedy)
    to = to or Path(f"{name}.yaml")
    text = source.read_text(encoding="utf-8")
    places = {one: to if one == name else to.with_name(f"{one}.yaml") for one in _REFERENCE.findall(text)}
    try:
        with to.open("x", encoding="utf-8") as file:
            file.write(_REFERENCE.sub(lambda found: str(places[found[1]]), text))
    except FileExistsError:
        raise ConfigError("the file exists", str(to), "give another name: --out FILE") from None
    except OSError as error:
        raise from_file_error(error, str(to)) from None
    others = [(one, place) for one, place in places.items() if not place.exists()]
    return [to, *(file for one, place in others for file in write_example(one, place))]
