"""The comparison on the landscapes, with every method, budget and seed: results, figures and a table.

The flows of a landscape are fitted once and stored. Each method is then one job (`fidec.geometry.methods`) in a
process with one thread: the networks are small, and on few cores this is twice as fast as one process with many
threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

import jax
import numpy as np

from fidec import launch
from fidec.errors import ConfigError, RunError
from fidec.geometry import figures, lab, landscapes
from fidec.geometry.methods import FLOWS, METHODS, SETTINGS
from fidec.register import unknown
from fidec.store import files


class Row(TypedDict, total=False):
    """One budget and seed (`lab.rows`). Numbers that are not finite are null."""

    method: str
    budget: float
    seed: int
    value: float | None
    kl: float | None
    off: float | None
    displacement: float | None
    folded: float | None
    modes: list[float]


class Result(TypedDict):
    """What a job stores of a method on a landscape: a row for each budget and seed, and samples."""

    rows: list[Row]
    drawn: Row
    samples: list[list[float]]


KL = (0.5, 1.0, 2.0)  # nats at which the frontiers are compared
SLOW = ("denoising", "path", "path_centred", "stein")


def run(
    names: Sequence[str],
    out: Path,
    *,
    seeds: int = 5,
    sizes: lab.Sizes | None = None,
    methods: Sequence[str] = tuple(METHODS),
    workers: int = 0,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Compute the missing results of these landscapes, draw the figures and write the table. Returns the summary."""
    sizes = sizes or lab.Sizes()
    for method in methods:
        if method not in METHODS:
            raise unknown("method of the laboratory", method, METHODS)
    settings = files.to_builtin({"seeds": seeds, **asdict(sizes)})
    for name in names:
        _check_settings(out / name, settings)
    for name in names:
        (out / name).mkdir(parents=True, exist_ok=True)
        files.write_json(out / name / SETTINGS, settings)
    fits, trainings = _missing(names, methods, out)
    trainings.sort(key=lambda job: job[1] not in SLOW)  # the slow ones first, so that no process ends late
    one_thread = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"}
    for jobs in (fits, trainings):
        processes = launch.run_jobs(
            "fidec.geometry.methods", str(out), jobs, workers or len(launch.usable_cores()), environ=one_thread
        )
        try:
            for job in processes:
                report(": ".join(job))
        except launch.JobError as error:
            raise RunError(f"{': '.join(error.job)}: {error}") from error
        finally:
            processes.close()
    return summarise(out)


def pending(names: Sequence[str], methods: Sequence[str], out: Path) -> int:
    """The number of jobs that `run` would do: flows to fit and methods to train."""
    return sum(map(len, _missing(names, methods, out)))


def _missing(names: Sequence[str], methods: Sequence[str], out: Path) -> tuple[list[tuple], list[tuple]]:
    fits = [(name,) for name in dict.fromkeys(names) if not (out / name / FLOWS).exists()]
    pairs = [(name, method) for name in dict.fromkeys(names) for method in dict.fromkeys(methods)]
    return fits, [(name, method) for name, method in pairs if not (out / name / f"{method}.json").exists()]


def _check_settings(directory: Path, settings: dict[str, Any]) -> None:
    """Results of different sizes or seeds must not be mixed."""
    stored = files.read_json(directory / SETTINGS) if (directory / SETTINGS).exists() else settings
    other = [f"{key} {stored.get(key)}, not {value}" for key, value in settings.items() if stored.get(key) != value]
    if other:
        raise ConfigError(f"{directory} holds results of other settings ({'; '.join(other)}); choose another --out")


# --- the outputs -----------------------------------------------------------------------------------------------


def summarise(out: Path) -> dict[str, Any]:
    """Draw both figures of each landscape that has results, and write summary.json and summary.md."""
    summary: dict[str, Any] = {}
    for name, landscape in landscapes.LANDSCAPES.items():
        stored = {method: out / name / f"{method}.json" for method in METHODS}
        results = {method: _read_result(path) for method, path in stored.items() if path.exists()}
        if not results:
            continue
        data = landscape.sample(jax.random.key(0), 8192)
        level = {"value": float(landscape.value(data).mean()), "off": float(landscape.off_support(data).mean())}
        rows = [_with_nan(row) for result in results.values() for row in result["rows"]]
        drawn = {method: _with_nan(result["drawn"]) for method, result in results.items()}
        captions = {"data": f"value {level['value']:.2f}, off {level['off']:.1%}"}
        captions |= {
            m: f"value {row['value']:.2f}, KL {row['kl']:.2f}, off {row['off']:.1%}" for m, row in drawn.items()
        }
        samples = {method: np.asarray(result["samples"], float) for method, result in results.items()}
        samples["data"] = np.asarray(data[:1500])
        figures.draw_samples(landscape, samples, captions, out / f"{name}-samples.png")
        figures.draw_frontier(landscape, rows, level, out / f"{name}-frontier.png")
        at = {f"{kl:g}": lab.frontier_at(rows, kl) for kl in KL}
        summary[name] = {"title": landscape.title, "data": level, "at": at}
    files.write_json(out / "summary.json", summary)
    files.atomic_write(out / "summary.md", markdown(summary))
    return summary


def _read_result(path: Path) -> dict[str, Any]:
    try:
        return files.read_json(path, Result)
    except RunError as error:
        raise RunError(f"{error}. Delete it, and the same command computes it again.") from error


def _with_nan(row: dict[str, Any]) -> dict[str, Any]:
    """Replace None by NaN, which JSON stores as null."""
    return {key: math.nan if value is None else value for key, value in row.items()}


def markdown(summary: dict[str, Any]) -> str:
    """A table for each landscape: value and off-support mass at each KL, the best value in bold."""
    lines = []
    for name, landscape in summary.items():
        at = landscape["at"]
        lines += [f"### {landscape['title']} (`{name}`)", ""]
        lines += [f"The data's own value is {landscape['data']['value']:.2f}.", ""]
        lines += [
            "| method | " + " | ".join(f"KL {kl} | off" for kl in at) + " |",
            "| --- |" + " --- | --- |" * len(at),
        ]
        best = {
            kl: max((row["value"][0] for row in rows.values() if row and row["n"] == row["of"]), default=None)
            for kl, rows in at.items()
        }
        for method in next(iter(at.values())):
            cells = [_cell(rows[method], best[kl]) for kl, rows in at.items()]
            lines.append(f"| {method.replace('_', ' ')} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None, best: float | None) -> str:
    if row is None:
        return "– | –"
    mean, low, high = row["value"]
    some = "" if row["n"] == row["of"] else f" ({row['n']} of {row['of']} seeds)"
    text = f"{mean:.3f}"
    text = f"**{text}**" if mean == best and not some else text
    return f"{text} ({low:.2f} to {high:.2f}){some} | {100 * row['off']:.1f} %"
