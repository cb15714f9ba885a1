"""Describe a data set (`describe_dataset`) and report what is unusual about it (`check_dataset`)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from fidec.data.dataset import OfflineDataset
from fidec.data.mapped import chunk_rows, chunks, extremes

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


def describe_dataset(dataset: OfflineDataset) -> dict[str, Any]:
    """Facts of a data set that JSON can hold, for `fidec data show`."""
    lengths = np.diff(dataset.episodes, axis=1)[:, 0]
    low, high = extremes(dataset.observations)
    values, counts = np.unique(lengths, return_counts=True)
    common = np.argsort(-counts, kind="stable")[:5]
    ends = dataset.terminals
    returns = np.add.reduceat(dataset.rewards.astype(np.float64), dataset.episodes[:, 0])
    return {
        "name": dataset.name,
        "source": dataset.source,
        "sha256": dataset.sha256,
        "transitions": dataset.size,
        "episodes": len(dataset.episodes),
        "observation_shape": list(dataset.observations.shape[1:]),
        "observation_dtype": str(dataset.observations.dtype),
        "observation_range": [float(low.min()), float(high.max())],
        "action_dim": dataset.actions.shape[1],
        "action_range": [float(dataset.actions.min()), float(dataset.actions.max())],
        "action_low": dataset.action_low,
        "action_high": dataset.action_high,
        "episode_length": {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "max": int(lengths.max()),
            "most_common": [[int(values[i]), int(counts[i])] for i in common],
        },
        "episode_return": {
            "min": float(returns.min()),
            "mean": float(returns.mean()),
            "max": float(returns.max()),
        },
        "rewards": _histogram(dataset.rewards),
        "masked_rows": int((dataset.masks == 0).sum()),
        "ends_of_task": int((ends & (dataset.masks == 0)).sum()),
        "ends_by_cut": int((ends & (dataset.masks != 0)).sum()),
        "mapped": dataset.mapped,
        "megabytes": round(dataset.nbytes / 1e6, 3),
        "info": dict(dataset.info),
    }


def description_text(facts: dict[str, Any]) -> str:
    """The facts of `describe_dataset` as aligned lines."""
    length, ret = facts["episode_length"], facts["episode_return"]
    table = ", ".join(f"{count} of {steps}" for steps, count in length["most_common"])
    units = "" if facts["action_low"] is None else ", rescaled from your bounds"
    rows = {
        "name": facts["name"],
        "source": facts["source"],
        "sha256": facts["sha256"],
        "transitions": f"{facts['transitions']} in {facts['episodes']} episodes, "
        f"{facts['megabytes']:.3g} MB {'if loaded; the images stay on the disk' if facts['mapped'] else 'in memory'}",
        "observations": f"{tuple(facts['observation_shape'])} {facts['observation_dtype']}, "
        f"{_span(facts['observation_range'])}",
        "actions": f"{facts['action_dim']} dimensions, {_span(facts['action_range'])}{units}",
        "episode steps": f"{length['min']} to {length['max']}, median {length['median']:g} ({table})",
        "episode return": f"{ret['min']:.4g} to {ret['max']:.4g}, mean {ret['mean']:.4g}",
        "ends": f"{facts['ends_of_task']} by the task (mask 0), {facts['ends_by_cut']} cut (mask 1)",
        "mask 0": f"{facts['masked_rows']} rows, {_share(facts['masked_rows'], facts['transitions'])}",
        **{
            key: str(value)
            for key, value in facts["info"].items()
            if key not in ("rows", "transitions") and value is not None
        },
    }
    lines = [f"{key:<15} {value}" for key, value in rows.items()]
    lines.append("rewards")
    lines += [f"  {label:<24} {count:>9}  {_share(count, facts['transitions'])}" for label, count in facts["rewards"]]
    return "\n".join(lines)


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
        _check_duplicates(dataset),
    ]
    if dataset.source.startswith("ogbench:"):
        findings += _explain_ogbench(dataset, facts)
    return Report(tuple(findings), facts)


def _check_values(dataset: OfflineDataset) -> list[Finding]:
    findings = []
    for key in ("observations", "next_observations", "actions", "rewards"):
        array = getattr(dataset, key)
        if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
            row = int(np.argwhere(~finite)[0][0])
            findings.append(
                Finding("error", "values", f"'{key}' is not finite, first in row {row}; repair or drop it.")
            )
    if not findings:
        findings.append(Finding("ok", "values", "all numbers are finite."))
    largest = float(np.abs(dataset.observations).max()) if dataset.observations.dtype.kind == "f" else 0.0
    if largest > 1000:
        text = f"observations reach {largest:.4g} in magnitude; networks learn better if they are scaled to about 1."
        findings.append(Finding("note", "scale", text))
    return findings


def _check_constant(dataset: OfflineDataset) -> list[Finding]:
    findings = []
    for key, advice in (
        ("observations", "they carry no information, which is harmless"),
        ("actions", "the policy will only ever see that value: is the right column stored?"),
    ):
        low, high = extremes(getattr(dataset, key))
        constant = np.flatnonzero(low == high)
        if len(constant) == 0:
            findings.append(Finding("ok", "constant", f"no dimension of the {key} is constant."))
        elif dataset.size > 1:
            names = ", ".join(map(str, constant[:10])) + (", ..." if len(constant) > 10 else "")
            severity = "note" if key == "observations" else "warning"
            text = f"{len(constant)} of {low.size} dimensions of the {key} are constant ({names}): {advice}."
            findings.append(Finding(severity, "constant", text))
    return findings


def _check_actions(dataset: OfflineDataset) -> Finding:
    low, high = float(dataset.actions.min()), float(dataset.actions.max())
    if low < -1 or high > 1:
        return Finding("error", "actions", f"actions span [{low:.4g}, {high:.4g}], outside [-1, 1].")
    edge = float((np.abs(dataset.actions) > 0.999).any(axis=1).mean())
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
    if done and not cut and facts["episodes"] > 3 and lengths["min"] == lengths["max"] > 1:
        text = (
            f"all {done} episodes have exactly {lengths['max']} steps and all end with mask 0. If that is a time "
            "limit, mark it as a truncation, or values will be too low: rewards after a time limit still count."
        )
        findings.append(Finding("warning", "terminals", text))
    inside = masked - done
    if inside:
        text = f"{inside} rows inside trajectories have mask 0: the trajectory continues after the task was solved."
        findings.append(Finding("ok" if dataset.source.startswith("ogbench:") else "note", "masks", text))
    return findings


def _check_rewards(dataset: OfflineDataset, facts: dict[str, Any]) -> Finding:
    low, high = float(dataset.rewards.min()), float(dataset.rewards.max())
    if low == high:
        text = f"every reward is {low:g}: unless episodes end early (mask 0), no action looks better than another."
        return Finding("warning", "rewards", text)
    if max(abs(low), abs(high)) > 1000:
        return Finding("note", "rewards", f"rewards span [{low:.4g}, {high:.4g}]; large values slow the critic.")
    kinds = len(facts["rewards"])
    return Finding("ok", "rewards", f"rewards span [{low:.4g}, {high:.4g}] ({kinds} values or bins, listed above).")


def _check_next(dataset: OfflineDataset) -> Finding:
    inside = np.flatnonzero(~dataset.terminals)
    broken, first = 0, -1
    chunk = chunk_rows(dataset.observations)
    for start in range(0, len(inside), chunk):
        rows = inside[start : start + chunk]
        differs = dataset.next_observations[rows] != dataset.observations[rows + 1]
        bad = rows[differs.reshape(len(rows), -1).any(axis=1)]
        if len(bad) and first < 0:
            first = int(bad[0])
        broken += len(bad)
    if broken:
        text = (
            f"in {broken} rows ({_share(broken, dataset.size)}) the next observation is not the observation of the "
            f"next row of the same episode, first in row {first}: an unmarked episode end, shuffled rows, or noise."
        )
        return Finding("warning", "next state", text)
    return Finding("ok", "next state", "every next observation is the next row's observation within its episode.")


def _check_duplicates(dataset: OfflineDataset) -> Finding:
    seen, done = (
        np.concatenate([_row_hashes(part) for part in chunks(column)])
        for column in (dataset.observations, dataset.actions)
    )
    keys = seen ^ (done << 1)
    copies = dataset.size - len(np.unique(keys))
    if copies > 0.01 * dataset.size and copies > 1:
        text = f"{copies} rows ({_share(copies, dataset.size)}) repeat another row's observation and action exactly."
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
        findings.append(Finding(severity, "success", f"{masked} rows ({_share(masked, rows)}) solve the task."))
    if facts["info"].get("regenerated") is not False:
        text = (
            f"not known to be OGBench's official file (origin: {facts['info'].get('origin')}); "
            f"report scores as 'regenerated, {facts['info'].get('rows')} rows'."
        )
        findings.append(Finding("note", "origin", text))
    return findings


def _histogram(rewards: np.ndarray) -> list[list[Any]]:
    """Counts by value if there are few values, else in ten bins."""
    rewards = rewards[np.isfinite(rewards)]
    values, counts = np.unique(rewards, return_counts=True)
    if len(values) <= 12:
        return [[f"{v:g}", int(c)] for v, c in zip(values, counts, strict=True)]
    counts, edges = np.histogram(rewards.astype(np.float64), bins=10)
    labels = [f"[{a:.4g}, {b:.4g})" for a, b in pairwise(edges)]
    return [[label, int(count)] for label, count in zip(labels, counts, strict=True)]


def _span(pair: list[float]) -> str:
    return f"{pair[0]:.4g} to {pair[1]:.4g}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %"
