"""What a report says about a run, read from its directory, finished or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from fidec.errors import FidecError, RunError
from fidec.report.runs import OTHER, SUCCESS, find_runs, unit_of
from fidec.store import files
from fidec.store.rundir import AUDIT, COMPARISON, LADDER, RunDirectory
from fidec.train.config import RunConfig
from fidec.train.stored import read_config

Rows = list[dict[str, Any]]


class _Summary(TypedDict, total=False):
    n: int
    n_failed: int
    success: float | None
    success_low: float | None
    success_high: float | None
    score: float | None


_Summary.__annotations__ |= dict.fromkeys(("return", "return_low", "return_high"), float | None)


class _Gain(TypedDict):
    of: str
    mean: float | None
    low: float | None
    high: float | None
    n: int


class _Comparison(TypedDict, total=False):
    environment: str
    step: int
    base: _Summary
    refined: _Summary
    gain: _Gain | None


class _Cell(TypedDict):
    noise: float
    strength: float
    summary: _Summary
    gain: _Gain | None


class _Ladder(TypedDict):
    environment: str
    step: int
    of: str
    against: str
    cells: list[_Cell]


class _Kl(TypedDict):
    mean: float | None
    low: float | None
    high: float | None


class _Audit(TypedDict):
    step: int
    sentences: list[str]
    kl: _Kl


@dataclass(frozen=True)
class Facts:
    """A run as it is now."""

    directory: Path
    config: RunConfig
    state: str
    reason: str | None
    step: int
    environment: dict[str, Any]
    train: Rows
    evaluations: Rows
    episodes: Rows
    times: Rows
    flow_times: Rows  # of the behaviour flow, if it was trained first
    unit: str  # of the score
    comparison: dict[str, Any] | None = None
    """Base and refined policy on the same episodes (`fidec eval --base`)."""
    ladder: dict[str, Any] | None = None
    audit: dict[str, Any] | None = None
    videos: list[Path] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.method} on {self.place}, seed {self.config.seed}"

    @property
    def method(self) -> str:
        return self.config.algo + ("" if self.config.preset == "recommended" else f":{self.config.preset}")

    @property
    def place(self) -> str:
        return self.config.env_name or self.config.data or "arrays"

    @property
    def measure(self) -> tuple[str, str]:
        """The key of an evaluation that its curve shows, and its name."""
        if any(row.get("evaluation/success") is not None for row in self.evaluations):
            return "success", "success rate"
        return "return", "return"

    @property
    def budget(self) -> tuple[float, str] | None:
        """The budget of the trust region and its unit."""
        options = self.config.options
        return options.trust_region() if hasattr(options, "trust_region") else None

    def column(self, name: str) -> list[float]:
        """A metric of the training log; NaN where it was not logged."""
        return column(self.train, name)


def column(rows: Rows, name: str) -> list[float]:
    """A number of each row; NaN where it is missing."""
    values = [row.get(name) for row in rows]
    return [float("nan") if value is None else value for value in values]


def read_all(paths: list[Path]) -> tuple[list[Facts], dict[Path, str]]:
    """The runs among the paths and below them, and the paths that cannot be reported, with the reason."""
    found, left_out = find_runs(paths)
    facts = []
    for path in found:
        try:
            facts.append(read(path))
        except FidecError as error:
            left_out[path] = str(error).removeprefix(f"{path} ").removeprefix(f"{path}: ")
    if not facts:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in left_out.items())
        raise RunError(f"there is no run to report. {reasons or 'No path was given.'}")
    return facts, left_out


def read(path: Path) -> Facts:
    run = RunDirectory.open(path, read_only=True)
    if not run.config.exists():
        raise RunError("was stopped before training began")
    config, status = read_config(run), run.read_status() or {}
    evaluations = run.read_jsonl("eval")
    flow = RunDirectory(run.flow, None)
    scored = [row for row in evaluations if row.get("evaluation/score") is not None]
    return Facts(
        directory=path,
        config=config,
        state=status.get("state", "not started"),
        reason=status.get("reason"),
        step=status.get("step", 0),
        environment=run.read_environment() if run.environment.exists() else {},
        train=run.read_jsonl("train"),
        evaluations=evaluations,
        episodes=run.read_jsonl("episodes"),
        times=run.read_jsonl("time"),
        flow_times=flow.read_jsonl("time") if (run.flow / "time.jsonl").exists() else [],
        unit=unit_of(config.task, scored) if scored else (SUCCESS if config.task else OTHER),
        comparison=files.find_json(path / COMPARISON, _Comparison),
        ladder=files.find_json(path / LADDER, _Ladder),
        audit=files.find_json(path / AUDIT / "audit.json", _Audit),
        videos=sorted(path.glob("*.mp4")),
    )
