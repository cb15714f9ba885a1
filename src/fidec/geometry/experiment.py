"""The comparison on the landscapes, with every method, budget and seed: results, figures and a table.

The flows of a landscape are fitted once and stored. Each method is then one job (`fidec.geometry.methods`) in a
process with one thread: the networks are small, and on few cores this is twice as fast as one process with many
threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, PercentFormatter

from fidec import launch, plots
from fidec.errors import ConfigError, RunError
from fidec.geometry import lab, landscapes
from fidec.geometry.landscapes import OFF_SUPPORT, Landscape
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
    kl_neighbours: float | None
    off: float | None
    displacement: float | None
    folded: float | None
    modes: list[float]


class Result(TypedDict):
    """What a job stores of a method on a landscape: a row for each budget and seed, and samples."""

    rows: list[Row]
    drawn: Row
    samples: list[list[float]]


KL = (0.5, 1.0, 2.0)  # nats at which methods are compared
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
        draw_samples(landscape, samples, captions, out / f"{name}-samples.png")
        draw_frontier(landscape, rows, level, out / f"{name}-frontier.png")
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


# --- the figures: refined samples on a landscape, and value against true KL ------------------------------------

SHADES = LinearSegmentedColormap.from_list("muted", plots.SAND)
# Label, colour and marker of each method.
STYLES = {
    "fql": ("FQL, one step", plots.GREY, "X"),
    "isotropic": ("isotropic (DeFlow)", plots.ORANGE, "s"),
    "local": ("local (the paper)", plots.PURPLE, "v"),
    "velocity": ("velocity (released code)", plots.RED, "^"),
    "averaged": ("averaged", plots.SKY, "D"),
    "information": ("information", plots.SKY, "H"),
    "renoised": ("renoised", plots.BLUE, "P"),
    "precision": ("precision", plots.TEAL, ">"),
    "stein": ("stein", plots.GREEN, "h"),
    "path": ("path, uncentred", plots.BLACK, "o"),
    "path_centred": ("path, centred", plots.VIOLET, "<"),
    "denoising": ("denoising", plots.CRIMSON, "*"),
    "closed_form": ("closed form, one step", plots.OCHRE, "p"),
    "closed_form_10": ("closed form, ten steps", plots.OLIVE, "d"),
}


def draw_samples(
    landscape: Landscape, samples: Mapping[str, np.ndarray], captions: Mapping[str, str], path: str | Path
) -> Path:
    """One panel for the data and one for each method: the value as shading, the support's edge, the samples as dots.

    `samples` maps "data" and method names to arrays (n, 2). Samples off the support have another colour.
    """
    names = sorted(samples, key=lambda name: name != "data")
    columns = math.ceil(math.sqrt(len(names)))
    rows = math.ceil(len(names) / columns)
    figure = plots.new_figure(3.3 * columns + 0.9, 3.62 * rows + 1.1)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    reach = max(np.percentile(np.abs(points[np.isfinite(points)]), 99.5) for points in samples.values())
    limit = float(np.clip(1.05 * reach, 1.1, 1.6))
    background = _background(landscape, limit)
    for panel, name in zip(panels.flat, names, strict=False):
        shading = _draw_background(panel, limit, *background)
        _draw_dots(panel, landscape, np.asarray(samples[name], np.float32), limit)
        title = "data" if name == "data" else STYLES[name][0]
        panel.set_title(title, loc="left", fontsize=13, fontweight="bold", color=plots.INK, pad=19)
        panel.text(0, 1.022, captions.get(name, ""), transform=panel.transAxes, fontsize=10.5, color=plots.INK)
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    bar = figure.colorbar(shading, ax=panels, shrink=0.5 if rows > 1 else 0.8, aspect=28, pad=0.015)
    bar.set_label("value of the action", color=plots.INK, fontsize=11)
    handles = [
        Line2D([], [], color=plots.BLUE, marker="o", markersize=6, linestyle="none", label="sample on the support"),
        Line2D([], [], color=plots.RED, marker="o", markersize=6, linestyle="none", label="sample off the support"),
        Line2D([], [], color=plots.INK, linewidth=1.2, label=f"edge of the support ({OFF_SUPPORT:g} sd)"),
        Line2D([], [], color=plots.INK, linewidth=1.0, linestyle=":", label="densest half of the data"),
    ]
    ncols = 4 if columns > 2 else 2
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, frameon=False, fontsize=11)
    figure.suptitle(landscape.title, color=plots.INK, fontsize=15)
    return plots.save_figure(figure, path)


def _background(landscape: Landscape, limit: float) -> tuple[np.ndarray, ...]:
    """Grid coordinates; value, distance to the support and log-density on the grid; the data's median log-density."""
    line = np.linspace(-limit, limit, 181, dtype=np.float32)
    grid = jnp.asarray(np.stack(np.meshgrid(line, line), -1))

    @jax.jit
    def fields(key: jax.Array) -> tuple[jax.Array, ...]:
        half = jnp.median(landscape.log_density(landscape.sample(key, 4000)))
        return landscape.value(grid), landscape.distance(grid), landscape.log_density(grid), half

    return line, *map(np.asarray, fields(jax.random.key(0)))


def _draw_background(panel: Axes, limit: float, line, value, distance, density, half):
    levels = MaxNLocator(12, steps=[1, 2, 5, 10]).tick_values(value.min(), value.max())
    shading = panel.contourf(line, line, value, levels=levels, cmap=SHADES)
    panel.contour(line, line, value, levels=levels, colors="white", linewidths=0.5)
    for field, level, width, dashes in ((distance, OFF_SUPPORT, 1.2, "-"), (density, float(half), 1.0, ":")):
        lines = panel.contour(line, line, field, levels=[level], colors=plots.INK, linewidths=width, zorder=4)
        lines.set(linestyle=dashes)
    panel.set(xlim=(-limit, limit), ylim=(-limit, limit), xticks=(-1, 0, 1), yticks=(-1, 0, 1), aspect="equal")
    panel.tick_params(labelsize=9, colors=plots.GREY, length=2)
    return shading


def _draw_dots(panel: Axes, landscape: Landscape, points: np.ndarray, limit: float) -> None:
    points = points[:1200]
    off = np.asarray(landscape.off_support(jnp.asarray(points)))
    for part, colour, size in ((points[~off], plots.BLUE, 5), (points[off], plots.RED, 9)):
        panel.scatter(*part.T, s=size, color=colour, alpha=0.55, linewidths=0, zorder=3)
    outside = np.mean(~(np.abs(points) <= limit).all(-1))  # NaN counts as outside
    if outside > 0:
        text = f"{100 * outside:.1f} % outside the frame"
        panel.text(0.98, 0.02, text, transform=panel.transAxes, ha="right", fontsize=9, color=plots.RED)


def draw_frontier(landscape: Landscape, rows: Iterable[lab.Row], data: Mapping[str, float], path: str | Path) -> Path:
    """Value, and mass off the support, against true KL: a line for each method over its budgets, a dot for each run.

    A line goes through the mean value and the geometric mean of the KL over seeds at each budget. `data` gives the
    dashed lines. Runs without a finite KL are counted in the legend and not drawn.
    """
    rows = list(rows)
    methods = [method for method in STYLES if any(row["method"] == method for row in rows)]
    figure = plots.new_figure(12.5, 5.2)
    panels = figure.subplots(1, 2)
    handles = [_draw_method(panels, rows, method) for method in methods]
    finite = [row["kl"] for row in rows if np.isfinite(row["kl"])] or [1.0]
    # The range of the finite values, at most 0.01 to 300 nats, and always with those of `KL`.
    left = min(max(min(finite) / 1.4, 0.01), KL[0] / 1.4)
    right = max(min(1.4 * max(finite), 300.0), 1.4 * KL[-1])
    for panel, quantity in zip(panels, ("value", "off"), strict=True):
        rule = panel.axhline(data[quantity], color=plots.INK, linestyle="--", linewidth=1.1, label="data")
        for kl in KL:
            panel.axvline(kl, color=plots.PALE, linewidth=0.9, zorder=0)
        panel.set(xscale="log", xlim=(left, right))
        panel.set_xlabel("true KL from the data (nats)", color=plots.INK, fontsize=12)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        plots.style_axes(panel)
    panels[0].set_title("Value", loc="left", fontsize=13, color=plots.INK)
    panels[1].set_title("Mass off the support", loc="left", fontsize=13, color=plots.INK)
    # A square-root axis: the difference between 0 and 5 % matters more than that between 80 and 90 %.
    panels[1].set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    panels[1].set_ylim(0, None)
    panels[1].yaxis.set_major_locator(FixedLocator([0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1]))
    panels[1].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    figure.legend(handles=[*handles, rule], loc="outside right center", frameon=False, fontsize=11.5)
    figure.suptitle(landscape.title, color=plots.INK, fontsize=15)
    return plots.save_figure(figure, path)


def _draw_method(panels: np.ndarray, rows: list[lab.Row], method: str) -> Line2D:
    label, colour, marker = STYLES[method]
    runs = [row for row in rows if row["method"] == method]
    finite = [row for row in runs if np.isfinite([row["kl"], row["value"]]).all()]
    if len(finite) < len(runs):
        label += f"\n(not finite: {len(runs) - len(finite)} of {len(runs)} runs)"
    by_budget = [[row for row in finite if row["budget"] == b] for b in sorted({row["budget"] for row in finite})]
    kl = [np.exp(np.mean([np.log(max(row["kl"], lab.FLOOR)) for row in group])) for group in by_budget]
    style = {"color": colour, "marker": marker, "markeredgecolor": "white", "markeredgewidth": 0.5}
    for panel, quantity in zip(panels, ("value", "off"), strict=True):
        mean = [np.mean([row[quantity] for row in group]) for group in by_budget]
        panel.plot(kl, mean, markersize=6.5, linewidth=1.8, **style)
        each = np.asarray([(max(row["kl"], lab.FLOOR), row[quantity]) for row in finite]).reshape(-1, 2)
        panel.scatter(*each.T, s=7, color=colour, alpha=0.45, linewidths=0)
    return Line2D([], [], markersize=7, label=label, **style)
