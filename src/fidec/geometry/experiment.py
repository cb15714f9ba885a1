"""The comparison on the landscapes: every method, every budget, every seed; files, figures and a table.

A landscape's flows are fitted once and kept. Each method is then a job of its own, in processes of one thread each:
on few cores that is twice as fast as one process with many threads, for the networks are small.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fidec.algos import constraints
from fidec.algos.constraints.averaged import Averaged
from fidec.algos.constraints.denoising import Denoising
from fidec.algos.constraints.isotropic import Isotropic
from fidec.algos.constraints.local import Local
from fidec.algos.constraints.path import Path as PathIntegral
from fidec.algos.constraints.renoised import Renoised
from fidec.algos.constraints.stein import Stein
from fidec.algos.constraints.velocity import Velocity
from fidec.errors import ConfigError
from fidec.geometry import frontier
from fidec.geometry.constraints import UncentredPath
from fidec.geometry.lab import Entry, Sizes
from fidec.store import files

FORMS = (0.0003, 0.001, 0.004, 0.015, 0.06)  # budgets of the quadratic forms
NATS = (0.1, 0.3, 0.8, 1.6, 3.0)
KL = (0.5, 1.0, 2.0)  # where frontiers are compared
ENTRIES: dict[str, Entry] = {
    "isotropic": Entry(FORMS, Isotropic()),
    "local": Entry(FORMS, Local(t_eps=0.8)),
    "velocity": Entry(FORMS, Velocity(t_eps=0.9, t_width=0.05)),
    "averaged": Entry(FORMS, Averaged(t_eps="auto")),
    "renoised": Entry(FORMS, Renoised(t_eps="auto")),
    "stein": Entry(NATS, Stein(t_eps="auto")),
    "path": Entry(NATS, UncentredPath(t_eps="auto")),
    "path_centred": Entry(NATS, PathIntegral(t_eps="auto")),
    "denoising": Entry(NATS, Denoising(t_eps="auto", samples=2)),
}
ONE_STEP = (1.0, 3.0, 10.0, 30.0, 100.0)  # FQL's alpha, the weight of staying near the flow
# The closed form: no training, so its budgets are as many, and the step is taken at once or in ten.
CLOSED = {"closed_form": 1, "closed_form_10": 10}
METHODS = ("fql", *ENTRIES, *CLOSED)
Report = Callable[[str], None]


def run(
    landscapes: Sequence[str],
    out: Path,
    *,
    seeds: int = 5,
    sizes: Sizes | None = None,
    methods: Sequence[str] = METHODS,
    workers: int = 0,
    report: Report = lambda text: None,
) -> dict[str, Any]:
    """Run what is not there yet, then draw the figures and write the table. The result is the summary."""
    sizes = sizes or Sizes()
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise ConfigError(f"there is no method {unknown[0]!r} in the laboratory; it has {', '.join(METHODS)}")
    landscapes, methods = list(dict.fromkeys(landscapes)), list(dict.fromkeys(methods))
    settings = files.to_builtin({"seeds": seeds, "sizes": asdict(sizes)})
    for name in landscapes:
        _check_settings(out / name, settings)
    for name in landscapes:
        if not (out / name / "settings.json").exists():
            (out / name).mkdir(parents=True, exist_ok=True)
            files.write_json(out / name / "settings.json", settings)
    workers = workers or len(os.sched_getaffinity(0))
    # Set before the processes start, since a process reads it when jax is imported.
    before = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{before or ''} --xla_cpu_multi_thread_eigen=false".strip()
    try:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _end_with, (os.getpid(),)) as pool:
            missing = [name for name in landscapes if not _flows_file(out, name).exists()]
            fits = {pool.submit(_fit, name, seeds, sizes, out): name for name in missing}
            waiting = {}
            for name in landscapes:
                if name not in missing:
                    waiting |= _submit(pool, name, methods, sizes, out)
            for done in as_completed(fits):
                done.result()
                report(f"{fits[done]}: {seeds} flows fitted")
                waiting |= _submit(pool, fits[done], methods, sizes, out)
            for done in as_completed(waiting):
                done.result()
                report("{}: {}".format(*waiting[done]))
    finally:
        os.environ.pop("XLA_FLAGS") if before is None else os.environ.update(XLA_FLAGS=before)
    return summarise(out)


def pending(landscapes: Sequence[str], methods: Sequence[str], out: Path) -> int:
    """How many jobs `run` would have to do: flows to fit, and methods to train."""
    return sum(
        (not _flows_file(out, name).exists()) + len(_todo(name, methods, out)) for name in dict.fromkeys(landscapes)
    )


def _todo(name: str, methods: Sequence[str], out: Path) -> list[str]:
    return [method for method in dict.fromkeys(methods) if not (out / name / f"{method}.json").exists()]


def _submit(pool: ProcessPoolExecutor, name: str, methods: Sequence[str], sizes: Sizes, out: Path) -> dict:
    # The longest first, so that no process is left with a long one at the end.
    todo = _todo(name, methods, out)
    order = sorted(todo, key=lambda method: method not in ("denoising", "path", "path_centred", "stein"))
    return {pool.submit(_train, name, method, sizes, out): (name, method) for method in order}


def _check_settings(directory: Path, settings: dict[str, Any]) -> None:
    """Results of other sizes or seeds must not be mixed."""
    path = directory / "settings.json"
    found = files.read_json(path) if path.exists() else settings
    if found == settings:
        return
    ours, theirs = ({"seeds": each["seeds"], **each["sizes"]} for each in (settings, found))
    other = [f"{key} {theirs.get(key)}, not {value}" for key, value in ours.items() if theirs.get(key) != value]
    raise ConfigError(f"{directory} holds results with other settings ({'; '.join(other)}); choose another --out")


def _flows_file(out: Path, name: str) -> Path:
    return out / name / "flows.safetensors"


# --- in a process of their own -------------------------------------------------------------------------------


def _end_with(parent: int) -> None:
    """A process whose parent was killed must not go on for minutes with work that nobody waits for."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _fit(name: str, seeds: int, sizes: Sizes, out: Path) -> None:
    from fidec.geometry import lab, landscapes
    from fidec.store.trees import save_tree

    save_tree(_flows_file(out, name), lab.fit(landscapes.get(name), seeds, sizes))


def load_flows(out: Path, name: str, seeds: int, sizes: Sizes) -> Any:
    """The flows of a landscape, as `run` left them."""
    import jax

    from fidec.geometry import lab, landscapes
    from fidec.store.trees import load_tree

    template = jax.eval_shape(lambda: lab.fit_template(landscapes.get(name), seeds, sizes))
    return jax.tree.map(jax.numpy.asarray, load_tree(_flows_file(out, name), template))


def kept_flows(out: Path, seeds: int, sizes: Sizes) -> Callable[[str], Any]:
    """How to get at a landscape's flows in a directory of `run`: those that fit are read, others are fitted."""

    def flows_of(name: str) -> Any:
        from fidec.geometry import lab, landscapes

        path = out / name / "settings.json"
        found = files.read_json(path) if path.exists() and _flows_file(out, name).exists() else None
        if found and found["seeds"] >= seeds and found["sizes"] == files.to_builtin(asdict(sizes)):
            return load_flows(out, name, found["seeds"], sizes)
        return lab.fit(landscapes.get(name), seeds, sizes)

    return flows_of


def _train(name: str, method: str, sizes: Sizes, out: Path) -> None:
    from fidec.geometry import lab, landscapes

    landscape = landscapes.get(name)
    seeds = files.read_json(out / name / "settings.json")["seeds"]
    flows = load_flows(out, name, seeds, sizes)
    more: dict[str, Any] = {}
    unit = "penalty"
    if method == "fql":
        budgets, unit = ONE_STEP, "alpha"
        params = lab.train_one_step(landscape, flows, ONE_STEP, sizes)
        truth = lab.measure_one_steps(landscape, params, flows, sizes)
    elif method in CLOSED:
        budgets = FORMS
        truth = lab.measure_closed_form(landscape, flows, FORMS, CLOSED[method], sizes)
    else:
        entry = ENTRIES[method]
        budgets, unit = entry.budgets, "nats" if isinstance(entry.constraint, constraints.KL) else "penalty"
        maps = lab.train_maps(landscape, flows, entry, sizes)
        truth = lab.measure_maps(landscape, maps, sizes)
        more = {"penalty": maps.penalty, "multiplier": maps.multiplier}
    rows = lab.rows(landscape, method, unit, budgets, truth, **more)
    # Of the first seed, the run whose true KL is nearest to one nat is the one to be drawn.
    kl = np.asarray(truth.kl)[0]
    away = np.abs(np.log(np.maximum(kl, frontier.FLOOR)))
    index = int(np.argmin(np.where(np.isfinite(away), away, np.inf)))
    drawn = next(row for row in rows if row["seed"] == 0 and row["budget"] == budgets[index])
    samples = np.asarray(truth.actions)[0, index, :1500].round(4).tolist()
    files.write_json(out / name / f"{method}.json", {"rows": rows, "drawn": drawn, "samples": samples})


# --- what comes out --------------------------------------------------------------------------------------------


def read(out: Path, name: str, methods: Iterable[str] = METHODS) -> dict[str, Any]:
    """Rows, samples and the drawn rows of a landscape, of the methods that are there."""
    rows, samples, drawn = [], {}, {}
    for method in methods:
        path = out / name / f"{method}.json"
        if path.exists():
            found = files.read_json(path)
            rows += [_numbers(row) for row in found["rows"]]
            samples[method], drawn[method] = np.asarray(found["samples"], float), _numbers(found["drawn"])
    return {"rows": rows, "samples": samples, "drawn": drawn}


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {key: math.nan if value is None else value for key, value in row.items()}


def summarise(out: Path) -> dict[str, Any]:
    """Draw both figures of each landscape that has results, and write summary.json and summary.md."""
    import jax

    from fidec.geometry import figures, landscapes

    summary: dict[str, Any] = {}
    for name, landscape in landscapes.LANDSCAPES.items():
        found = read(out, name)
        if not found["rows"]:
            continue
        data = landscape.sample(jax.random.key(0), 8192)
        level = {"value": float(landscape.value(data).mean()), "off": float(landscape.off_support(data).mean())}
        row = {"landscape": name, "method": "data", "budget": 0.0, "seed": 0, "kl": 0.0, **level}
        captions = {
            m: f"value {r['value']:.2f}, KL {r['kl']:.2f}, off {r['off']:.1%}" for m, r in found["drawn"].items()
        }
        captions["data"] = f"value {level['value']:.2f}, off {level['off']:.1%}"
        samples = {"data": np.asarray(data[:1500]), **found["samples"]}
        figures.draw_samples(landscape, samples, captions, out / f"{name}-samples.png")
        figures.draw_frontier(landscape, [row, *found["rows"]], out / f"{name}-frontier.png")
        at = {f"{kl:g}": frontier.frontier_at(found["rows"], kl) for kl in KL}
        summary[name] = {"title": landscape.title, "data": level, "at": at}
    files.write_json(out / "summary.json", summary)
    files.atomic_write(out / "summary.md", markdown(summary))
    return summary


def markdown(summary: dict[str, Any]) -> str:
    """A table for each landscape: value and off-support mass at each KL, the best value in bold."""
    lines = []
    for name, found in summary.items():
        data = found["data"]
        lines += [f"### {found['title']} (`{name}`)", ""]
        lines += [f"The data's own value is {data['value']:.2f}.", ""]
        lines += ["| method | " + " | ".join(f"KL {kl} | off" for kl in found["at"]) + " |"]
        lines += ["| --- |" + " --- | --- |" * len(found["at"])]
        best = {
            kl: max((row["value"][0] for row in rows.values() if row and row["n"] == row["of"]), default=None)
            for kl, rows in found["at"].items()
        }
        for method in next(iter(found["at"].values())):
            cells = [_cell(found["at"][kl][method], best[kl]) for kl in found["at"]]
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
