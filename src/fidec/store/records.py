"""What the JSON files of a run hold, as schemas (`fidec.store.schema`). Entries that nobody reads are left out."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Marker(TypedDict):
    format: Literal["fidec-run"]


class Status(TypedDict):
    state: str
    step: int


class Origin(TypedDict, total=False):
    """What is known of a data file."""

    file: str | None
    regenerated: bool | None
    file_sha256: str | None


class Facts(TypedDict):
    """A data set that a run was trained on."""

    source: str
    transitions: int
    sha256: str
    info: NotRequired[Origin | None]
    findings: NotRequired[list[str]]  # warnings of the check, if there was one


class Environment(TypedDict, total=False):
    dataset: Facts | None
    buffer: Facts | None
    packages: dict[str, str | None]
    resumed: list[dict[str, Any]]


class Config(TypedDict, total=False):
    """What is read without the method. `train.stored.config_of` checks the rest."""

    algo: str
    preset: str
    task: str | None
    env: str | None
    data: str | None
    steps: int | None
    online_steps: int
    options: dict[str, Any] | None
    sha256: str


Evaluation = TypedDict(
    "Evaluation",
    {
        "evaluation/n": int,
        "evaluation/n_failed": int,
        "evaluation/score": float | None,
        "evaluation/success": float | None,
        "evaluation/success_low": float | None,
        "evaluation/success_high": float | None,
        "evaluation/return": float | None,
        "evaluation/return_low": float | None,
        "evaluation/return_high": float | None,
    },
    total=False,
)
ROWS: dict[str, Any] = {"train": dict[str, float | None], "time": dict[str, float | None], "eval": Evaluation}
