"""A data set as a page, or as a section of a report: episodes, rewards, histograms, frames, what looks wrong."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.cameras import png, resize
from fidec.data.check import Report, check_dataset
from fidec.data.dataset import OfflineDataset
from fidec.data.summary import info_text, share
from fidec.errors import FidecError
from fidec.parts import is_image, named
from fidec.report.charts import Chart, Line, draw, histogram
from fidec.report.concerns import Concern
from fidec.report.html import Html, join, pairs, table, tag, write_document
from fidec.report.runs import RunResults
from fidec.report.sections import warnings
from fidec.store.versions import version
from fidec.train.training_data import data_of

ROWS = 200_000  # of a histogram; evenly spaced if there are more
COLUMNS = 60  # histograms of one part
FRAMES, LARGEST_SIDE = 6, 192  # shown of each camera, in pixels


def write_data_page(dataset: OfflineDataset, out: str | Path) -> Path:
    """Draw a data set as one HTML file."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    keys = "Charts: move the pointer for values, drag to zoom, double-click to reset. Keys: arrows, + and -, 0."
    body = join(
        tag(
            "header",
            tag("h1", dataset.name),
            tag("p", f"A data set, drawn on {when} by fidec {version('fidec')}.", class_="soft"),
            tag("p", keys, class_="soft keys"),
        ),
        tag("main", *data_parts(dataset)),
    )
    return write_document(out, f"data set {dataset.name}", body)


def data_parts(dataset: OfflineDataset, heading: str = "h2") -> Iterator[Html]:
    """Everything about a data set. `heading` is the element of its headings."""
    report = check_dataset(dataset)
    yield warnings(_concerns(report))
    yield pairs(_facts(report.facts))
    yield tag(heading, "Episodes")
    yield tag("div", *(draw(chart) for chart in _episodes(dataset)), class_="charts")
    lengths = np.diff(dataset.episodes, axis=1)[:, 0]
    small = [histogram("steps of an episode", lengths)]
    if dataset.has_rewards:
        small += [histogram("return of an episode", _returns(dataset)), histogram("reward", dataset.rewards)]
    yield tag("p", "Histograms have 30 bins. Above each: mean \u00b1 standard deviation.", class_="soft")
    yield tag("div", *small, class_="small")
    if dataset.has_rewards and report.facts["rewards"]:
        rows = [[label, f"{count:,}", share(count, dataset.size)] for label, count in report.facts["rewards"]]
        yield tag("details", tag("summary", "rewards in numbers"), table(["reward", "rows", "share"], rows))
    yield tag(heading, "Actions")
    units = "In [-1, 1]." if dataset.action_low is None else "Rescaled to [-1, 1] from the bounds of the data."
    yield tag("p", units, class_="soft")
    yield _histograms("action", dataset.actions, dataset.column_names("actions"))
    for name, array in named("observations", dataset.observations).items():
        part = name.partition("/")[2]
        yield tag(heading, f"Observation: {part}" if part else "Observations")
        image, names = is_image(array.shape[1:]), dataset.column_names(name)
        yield _frames(part or "image", array) if image else _histograms(part or "column", array, names)
    yield tag(heading, "Checks")
    findings = [[finding.topic, finding.severity, finding.text] for finding in report.findings]
    yield table(["topic", "result", "what was found"], findings, class_="words")


def data_sections(runs: Sequence[RunResults]) -> Iterator[Html]:
    """The data of runs, each data set once, loaded from the source in their records."""
    seen = set()
    for run in runs:
        recorded = run.environment.get("dataset") or {}
        digest = recorded.get("sha256")
        if digest in seen:
            continue
        seen.add(digest)
        yield tag("section", tag("h2", f"Data: {recorded.get('name') or run.place}"), *_data_of(run))


def _data_of(run: RunResults) -> Iterator[Html]:
    try:
        dataset = data_of(run.directory)
    except FidecError as error:
        yield warnings([Concern("warning", f"The data is not drawn: {error}")])
    else:
        yield from data_parts(dataset, heading="h3")


def _concerns(report: Report) -> list[Concern]:
    words = {"error": "bad", "warning": "warning"}
    return [Concern(words[each.severity], each.text) for each in report.findings if each.severity in words]


def _facts(facts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "source", facts["source"]
    yield "SHA-256", tag("code", facts["sha256"])
    yield "transitions", f"{facts['transitions']:,} in {facts['episodes']:,} episodes, {facts['megabytes']:.3g} MB"
    length = facts["episode_length"]
    yield "episode steps", f"{length['min']} to {length['max']}, median {length['median']:g}"
    yield "ends", f"{facts['ends_of_task']} by the task (mask 0), {facts['ends_by_cut']} cut (mask 1)"
    for key, value in facts["info"].items():
        if value is not None and key not in ("rows", "transitions", "next_state_rows", "unused_rows"):
            yield key.replace("_", " "), info_text(value)


def _returns(dataset: OfflineDataset) -> np.ndarray:
    return np.add.reduceat(dataset.rewards.astype(np.float64), dataset.episodes[:, 0])


def _episodes(dataset: OfflineDataset) -> Iterator[Chart]:
    numbers = list(range(len(dataset.episodes)))
    lengths = np.diff(dataset.episodes, axis=1)[:, 0].tolist()
    yield Chart("Length", "episode", "steps", [Line("steps", numbers, lengths)])
    if dataset.has_rewards:
        yield Chart(
            "Return", "episode", "sum of rewards", [Line("sum of rewards", numbers, _returns(dataset).tolist())]
        )


def _histograms(name: str, array: Any, names: list[str] | None) -> Html:
    """A histogram of each column, under its name or its number."""
    step = max(1, -(-len(array) // ROWS))
    flat = np.asarray(array[np.arange(0, len(array), step)]).reshape(-(-len(array) // step), -1)
    shown = min(flat.shape[1], COLUMNS)
    notes = [f"One row in {step} is drawn."] if step > 1 else []
    notes += [f"The first {shown} of {flat.shape[1]} columns."] if shown < flat.shape[1] else []
    titles = names or [f"{name} {index}" for index in range(shown)]
    return join(
        tag("p", " ".join(notes), class_="soft") if notes else None,
        tag("div", *(histogram(titles[index], flat[:, index]) for index in range(shown)), class_="small"),
    )


def _frames(name: str, images: Any) -> Html:
    """A few frames, evenly spaced from the first to the last."""
    rows = np.unique(np.linspace(0, len(images) - 1, FRAMES).astype(int))
    shape = images.shape[1:]
    words = f"{shape[0]} x {shape[1]} pixels, {shape[2]} channels."
    figures = [
        tag("figure", tag("img", src=_picture(np.asarray(images[row])), alt=f"{name}, row {row}"), _caption(int(row)))
        for row in rows
    ]
    return join(tag("p", words, class_="soft"), tag("div", *figures, class_="frames"))


def _caption(row: int) -> Html:
    return tag("figcaption", f"row {row:,}")


def _picture(image: np.ndarray) -> str:
    """A PNG inside an address. Of more than three channels the last three are shown."""
    image = image[..., -3:] if image.shape[2] >= 3 else image[..., -1:].repeat(3, axis=2)
    scale = max(1.0, max(image.shape[:2]) / LARGEST_SIDE)
    image = resize(np.ascontiguousarray(image), (round(image.shape[0] / scale), round(image.shape[1] / scale)))
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"
