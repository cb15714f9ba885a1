"""Report what is unusual about a data set (`check_dataset`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np

from fidec.data.dataset import OfflineDataset
from fidec.data.disk_array import block_rows, blocks, extremes
from fidec.data.summary import describe_dataset, description_text, share
from fidec.parts import arrays_of, named

Severity = Literal["ok", "note", "warning", "error"]
_ORDER: tuple[Severity, ...] = ("ok", "note", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """One sentence about one topic."""

    severity: Severity
    topic: str
    text: str


@dataclass(frozen=True)
class Report:
    """The findings, in the order of the checks, and the facts behind them."""

    findings: tuple[Finding, ...]
    facts: dict[str, Any]

    @property
    def worst(self) -> Severity:
        """The highest severity; do not train on data with an "error"."""
        return _ORDER[max((_ORDER.index(f.severity) for f in self.findings), default=0)]

    def to_text(self) -> str:
        """The description, then one line per finding."""
        width = max(len(f.topic) for f in self.findings)
        lines = [f"{f.severity:<8} {f.topic:<{width}}  {f.text}" for f in self.findings]
        counts = ", ".join(f"{n} {s}" for s in _ORDER if (n := sum(f.severity == s for f in self.findings)))
        return "\n".join([description_text(self.facts), "", *lines, "", f"findings: {counts}"])

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        findings = [{"severity": f.severity, "topic": f.topic, "text": f.text} for f in self.findings]
        return {"worst": self.worst, "findings": findings, "facts": self.facts}


def check_dataset(dataset: OfflineDataset) -> Report:
    """Check for the common errors of offline data."""
    facts = describe_dataset(dataset)
    findings = [
        *_check_values(dataset),
        *_check_constant(dataset),
        _check_actions(dataset),
        _check_episodes(dataset, facts),
        *_check_masks(dataset, facts),
        _check_rewards(dataset, facts),
        _check_next(dataset),
        *_check_row_use(facts["info"]),
        *_check_left_out(facts["info"]),
        _check_duplicates(dataset),
    ]
    if dataset.source.startswith("ogbench:"):
        findings += _explain_ogbench(dataset, facts)
    return Report(tuple(findings), facts)


def _check_values(dataset: OfflineDataset) -> list[Finding]:
    findings = []
    columns = {
        **named("observations", dataset.observations),
        **named("next_observations", dataset.next_observations),
        "actions": dataset.actions,
        "rewards": dataset.rewards,
    }
    for key, array in columns.items():
        if (row := _first_not_finite(array)) is not None:
            findings.append(
                Finding("error", "values", f"'{key}' is not finite, first in row {row}; repair or drop it.")
            )
    if not findings:
        findings.append(Finding("ok", "values", "all numbers are finite."))
    for key, array in named("observations", dataset.observations).items():
        largest = max(float(np.abs(block).max()) for block in blocks(array)) if array.dtype.kind == "f" else 0.0
        if largest > 1000:
            text = f"{key} reach {largest:.4g} in magnitude; networks learn better if they are scaled to about 1."
            findings.append(Finding("note", "scale", text))
    return findings


def _first_not_finite(array: np.ndarray) -> int | None:
    """The first row with a number that is not finite."""
    start = 0
    for block in blocks(array) if array.dtype.kind == "f" else ():
        if not (finite := np.isfinite(block)).all():
            return start + int(np.argwhere(~finite)[0][0])
        start += len(block)
    return None


def _check_constant(dataset: OfflineDataset) -> list[Finding]:
    findings = []
    harmless, doubtful = (
        "they carry no information, which is harmless",
        "the policy will only ever see that value: is the right column stored?",
    )
    for key, array in {**named("observations", dataset.observations), "actions": dataset.actions}.items():
        low, high = extremes(array)
        constant = np.flatnonzero(low == high)
        if len(constant) == 0:
            findings.append(Finding("ok", "constant", f"no dimension of the {key} is constant."))
        elif dataset.size > 1:
            called = dataset.column_names(key) or range(low.size)
            names = ", ".join(str(called[at]) for at in constant[:10]) + (", ..." if len(constant) > 10 else "")
            severity, advice = ("warning", doubtful) if key == "actions" else ("note", harmless)
            text = f"{len(constant)} of {low.size} dimensions of the {key} are constant ({names}): {advice}."
            findings.append(Finding(severity, "constant", text))
    return findings


def _check_actions(dataset: OfflineDataset) -> Finding:
    low, high = (
        float(choose(each)) for choose, each in zip((np.min, np.max), extremes(dataset.actions), strict=True)
    )
    if low < -1 or high > 1:
        return Finding("error", "actions", f"actions span [{low:.4g}, {high:.4g}], outside [-1, 1].")
    edge = sum(int((np.abs(block) > 0.999).any(axis=1).sum()) for block in blocks(dataset.actions)) / dataset.size
    if edge > 0.5:
        text = f"{edge:.0%} of the actions lie on a bound in some dimension: were they clipped or wrongly scaled?"
        return Finding("note", "actions", text)
    if max(-low, high) < 0.1:
        text = f"actions span only [{low:.4g}, {high:.4g}] of [-1, 1]: pass action_low and action_high?"
        return Finding("warning", "actions", text)
    return Finding("ok", "actions", f"actions lie in [-1, 1] and use [{low:.4g}, {high:.4g}]; {edge:.0%} on a bound.")


def _check_episodes(dataset: OfflineDataset, facts: dict[str, Any]) -> Finding:
    length = facts["episode_length"]
    if facts["episodes"] == 1:
        text = f"all {dataset.size} rows are one episode: if there were several, their ends are not marked."
        return Finding("warning" if dataset.size > 10_000 else "note", "episodes", text)
    short = int((np.diff(dataset.episodes, axis=1)[:, 0] == 1).sum())
    if short > 0.1 * facts["episodes"]:
        text = f"{short} of {facts['episodes']} episodes have a single step: is 'terminals' marked on every row?"
        return Finding("warning", "episodes", text)
    text = f"{facts['episodes']} episodes of {length['min']} to {length['max']} steps (median {length['median']:g})."
    return Finding("ok", "episodes", text)


def _check_masks(dataset: OfflineDataset, facts: dict[str, Any]) -> list[Finding]:
    masked, done, cut = facts["masked_rows"], facts["ends_of_task"], facts["ends_by_cut"]
    findings = []
    if not np.isin(dataset.masks, (0.0, 1.0)).all():
        findings.append(Finding("error", "masks", "some masks are neither 0 nor 1."))
    text = f"{done} trajectories end with their task (mask 0) and {cut} were cut (mask 1, bootstrapped)."
    findings.append(Finding("ok", "terminals", text))
    lengths = facts["episode_length"]
    longest = int((np.diff(dataset.episodes, axis=1) == lengths["max"]).sum())
    # The very last episode may be incomplete, and is then cut.
    if done and cut <= 1 and longest > 3 and longest >= 0.2 * facts["episodes"] and lengths["max"] > 1:
        text = (
            f"{longest} of {facts['episodes']} episodes have exactly {lengths['max']} steps, the most of all, and "
            "end with mask 0. If that is a time limit, mark it as a truncation, or values will be too low: rewards "
            "after a time limit still count."
        )
        findings.append(Finding("warning", "terminals", text))
    inside = masked - done
    if inside:
        text = f"{inside} rows inside trajectories have mask 0: the trajectory continues after the task was solved."
        findings.append(Finding("ok" if dataset.source.startswith("ogbench:") else "note", "masks", text))
    return findings


def _check_rewards(dataset: OfflineDataset, facts: dict[str, Any]) -> Finding:
    if not dataset.has_rewards:
        text = "the data has no rewards: only methods that need none, such as bc, can be trained on it."
        return Finding("note", "rewards", text)
    low, high = float(dataset.rewards.min()), float(dataset.rewards.max())
    if low == high:
        text = f"every reward is {low:g}: unless episodes end early (mask 0), no action looks better than another."
        return Finding("warning", "rewards", text)
    if max(abs(low), abs(high)) > 1000:
        return Finding("note", "rewards", f"rewards span [{low:.4g}, {high:.4g}]; large values slow the critic.")
    kinds = len(facts["rewards"])
    return Finding("ok", "rewards", f"rewards span [{low:.4g}, {high:.4g}] ({kinds} values or bins, listed above).")


def unlinked_rows(dataset: OfflineDataset) -> tuple[int, int]:
    """How many next observations are not the observation of the next row of their episode, and the first such row."""
    inside = np.flatnonzero(~dataset.terminals)
    broken, first = 0, -1
    pairs = list(zip(arrays_of(dataset.observations), arrays_of(dataset.next_observations), strict=True))
    step = min(block_rows(array) for array, _ in pairs)
    for start in range(0, len(inside), step):
        rows = inside[start : start + step]
        differs = [(after[rows] != array[rows + 1]).reshape(len(rows), -1).any(axis=1) for array, after in pairs]
        bad = rows[np.any(differs, axis=0)]
        if len(bad) and first < 0:
            first = int(bad[0])
        broken += len(bad)
    return broken, first


def _check_next(dataset: OfflineDataset) -> Finding:
    broken, first = unlinked_rows(dataset)
    if broken:
        text = (
            f"in {broken} rows ({share(broken, dataset.size)}) the next observation is not the observation of the "
            f"next row of the same episode, first in row {first}: an unmarked episode end, shuffled rows, or noise."
        )
        return Finding("warning", "next state", text)
    return Finding("ok", "next state", "every next observation is the next row's observation within its episode.")


def _check_row_use(info: dict[str, Any]) -> list[Finding]:
    findings = []
    if count := info.get("next_state_rows", 0):
        text = (
            f"{count} of {info['rows']} rows are used only as the next state of the row before: the last row of an "
            "episode that was cut has no next state of its own."
        )
        findings.append(Finding("ok", "next state", text))
    if count := info.get("unused_rows", 0):
        text = (
            f"{count} of {info['rows']} rows are not used: they are episodes of a single row that were cut, so they "
            "have no next state. Are the ends of episodes marked in the right rows?"
        )
        findings.append(Finding("warning", "next state", text))
    return findings


def _check_left_out(info: dict[str, Any]) -> list[Finding]:
    """What a source has not read or found, and where it took rewards from."""
    found = []
    if left_out := info.get("left_out"):
        text = f"these parts of an observation are not read: {', '.join(left_out)}."
        advice = "" if "cameras" in info else " Cameras are read if the source names them: ?cameras=NAME&size=64x64."
        found.append(Finding("note", "parts", text + advice))
    if holes := info.get("holes"):
        text = f"the data set is incomplete, and is read because its source says holes=allow: {holes}."
        found.append(Finding("warning", "holes", text))
    if rule := info.get("rewards"):
        found.append(Finding("ok", "rewards", f"rewards: {rule}."))
    return found


def _check_duplicates(dataset: OfflineDataset) -> Finding:
    hashes = [
        np.concatenate([_row_hashes(rows) for rows in blocks(column)])
        for column in (*arrays_of(dataset.observations), dataset.actions)
    ]
    keys = reduce(lambda seen, done: seen ^ (done << 1), hashes)
    copies = dataset.size - len(np.unique(keys))
    if copies > 0.01 * dataset.size and copies > 1:
        text = f"{copies} rows ({share(copies, dataset.size)}) repeat another row's observation and action exactly."
        return Finding("warning", "duplicates", text)
    return Finding("ok", "duplicates", f"{copies} rows repeat another row's observation and action exactly.")


def _row_hashes(array: np.ndarray) -> np.ndarray:
    """A 64-bit hash per row: the bytes as integers, mixed and multiplied by fixed random odd numbers."""
    rows = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8))).view(np.uint64)
    weights = np.random.default_rng(0).integers(0, 2**63, padded.shape[1], dtype=np.uint64) * 2 + 1
    mixed = (padded ^ (padded >> np.uint64(29))) * weights
    mixed ^= mixed >> np.uint64(32)
    return (mixed * weights[::-1]).sum(axis=1, dtype=np.uint64)


def _explain_ogbench(dataset: OfflineDataset, facts: dict[str, Any]) -> list[Finding]:
    worst = int(dataset.rewards.min())
    masked, rows = facts["masked_rows"], dataset.size
    findings = [
        Finding(
            "ok",
            "ogbench",
            f"a reward is minus the number of goals not yet met (here {worst} to {int(dataset.rewards.max())}; 0 if "
            "all are met); a mask is 0 exactly in these solved states, judged before the action. "
            "Trajectories are play or exploration and continue after success.",
        )
    ]
    if masked == 0:
        text = "no row solves the task: rewards never reach 0, so there is nothing to learn from. More rows?"
        findings.append(Finding("warning", "success", text))
    else:
        severity: Severity = "note" if masked < 0.001 * rows else "ok"
        findings.append(Finding(severity, "success", f"{masked} rows ({share(masked, rows)}) solve the task."))
    if facts["info"].get("regenerated") is not False:
        text = (
            f"not known to be OGBench's official file (origin: {facts['info'].get('origin')}); "
            f"report scores as 'regenerated, {facts['info'].get('rows')} rows'."
        )
        findings.append(Finding("note", "origin", text))
    return findings
