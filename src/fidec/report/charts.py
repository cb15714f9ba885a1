"""Charts: what is drawn, for the page and for figures (`report.figures`), and line charts and histograms as SVG.

Lines differ in colour and in dashes; the page's script adds a cursor, values and zoom.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fidec.report.html import Html, data, join, tag

WIDTH, HEIGHT = 640, 290
LEFT, RIGHT, TOP, BOTTOM = 64, 30, 14, 42  # margins around the plot
COLOURS, DASHES = 7, 4  # in the style sheet: 28 lines differ
SMALL_WIDTH, SMALL_HEIGHT, SMALL_BOTTOM = 220, 84, 16  # of a histogram
BINS = 30


@dataclass(frozen=True)
class Line:
    """A line with an optional band. A value that is not finite interrupts it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log: bool = False
    limits: tuple[float, float] | None = None
    """Ends of the vertical axis; by default those of the values."""
    levels: Sequence[tuple[str, float]] = ()
    """Horizontal lines, such as a budget."""
    marks: Sequence[tuple[str, float]] = ()
    """Vertical lines, such as the beginning of the online phase."""
    note: str = ""


@dataclass(frozen=True)
class Axis:
    """Values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        if not self.log:
            return ticks(self.low, self.high)
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        if last - first < 1:  # no two powers of ten: numbers between them
            return [tick for tick in ticks(self.low, self.high) if tick > 0]
        return [10.0**power for power in range(first, last + 1, math.ceil((last - first + 1) / 6))]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two values."""
    size = 10.0 ** math.floor(math.log10((high - low) / about))
    step = next(size * factor for factor in (1, 2, 5, 10) if (high - low) / (size * factor) <= about)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def decimate(line: Line, points: int) -> Line:
    """The line with at most this many points: means over groups of successive points, at the end of each group."""
    group = math.ceil(len(line.x) / points)
    if group <= 1:
        return line

    def groups(values: Sequence[float]) -> list[np.ndarray]:
        return np.split(np.asarray(values, float), range(group, len(values), group))

    def mean(values: Sequence[float]) -> list[float]:
        finite = [each[np.isfinite(each)] for each in groups(values)]
        return [float(each.mean()) if len(each) else math.nan for each in finite]

    ends = [None if values is None else mean(values) for values in (line.low, line.high)]
    return Line(line.name, [float(each[-1]) for each in groups(line.x)], mean(line.y), *ends)


def has_values(line: Line) -> bool:
    return any(map(math.isfinite, line.y))


def draw(chart: Chart, points: int = 400) -> Html:
    """A figure with its caption, legend and an SVG. Nothing if no line has a value."""
    lines = [decimate(_usable(line, chart.log), points) for line in chart.lines]
    lines = list(filter(has_values, lines))
    if not lines:
        return join()
    x_axis, y_axis = _axes(chart, lines)
    # Clips when zoomed; 4 more pixels at the sides leave the first and the last dot whole.
    frame = {"x": LEFT - 4, "y": TOP, "width": WIDTH - LEFT - RIGHT + 8, "height": HEIGHT - TOP - BOTTOM}
    curves = tag("g", *(_curve(index, line, x_axis, y_axis) for index, line in enumerate(lines)), class_="lines")
    svg = tag(
        "svg",
        *_scales(chart, x_axis, y_axis),
        tag("svg", curves, **frame, viewBox=" ".join(map(str, frame.values())), class_="plot"),
        tag("path", class_="cursor", d="M0 0"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="chart",
        tabindex="0",
        role="img",
        aria_label=f"{chart.title}: {'; '.join(map(_spoken, lines))}",
        data_chart=data(_payload(chart, lines, x_axis)),
    )
    named = len(lines) > 1 or lines[0].name != chart.y_label
    return tag(
        "figure",
        tag("figcaption", tag("strong", chart.title), f" {chart.note}" if chart.note else None),
        tag("ul", *(_legend(index, line.name) for index, line in enumerate(lines)), class_="legend")
        if named
        else None,
        svg,
        tag("output", aria_live="polite", class_="values"),
        tag("details", tag("summary", "numbers"), class_="numbers"),
    )


def _usable(line: Line, log: bool) -> Line:
    """NaN in place of values that the axis does not have."""

    def clean(values: Sequence[float]) -> list[float]:
        return [float(v) if v is not None and math.isfinite(v) and (v > 0 or not log) else math.nan for v in values]

    ends = [None if values is None else clean(values) for values in (line.low, line.high)]
    return Line(line.name, list(map(float, line.x)), clean(line.y), *ends)


def _axes(chart: Chart, lines: Sequence[Line]) -> tuple[Axis, Axis]:
    xs = [x for line in lines for x in line.x]
    left, right = min(0.0, *xs), max(0.0, *xs)
    x_axis = Axis(left, right if right > left else left + 1, LEFT, WIDTH - RIGHT)
    if chart.limits is not None:
        return x_axis, Axis(*chart.limits, HEIGHT - BOTTOM, TOP)
    ys = [v for line in lines for each in (line.y, line.low or (), line.high or ()) for v in each if math.isfinite(v)]
    ys += [value for _, value in _levels(chart)]
    low, high = min(ys), max(ys)
    if chart.log:
        return x_axis, Axis(low / 1.3, high * 1.3, HEIGHT - BOTTOM, TOP, log=True)
    space = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
    return x_axis, Axis(low - space, high + space, HEIGHT - BOTTOM, TOP)


def _levels(chart: Chart) -> list[tuple[str, float]]:
    return [(name, value) for name, value in chart.levels if math.isfinite(value) and (value > 0 or not chart.log)]


def _scales(chart: Chart, x_axis: Axis, y_axis: Axis) -> Iterator[Html]:
    """Everything around the lines."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for tick in y_axis.ticks():
        y = y_axis(tick)
        yield tag("path", class_="grid", d=f"M{LEFT} {y}H{right}")
        yield _text(LEFT - 6, y + 4, number(tick), "tick end")
    places = [_text(x_axis(tick), bottom + 16, number(tick), "tick") for tick in x_axis.ticks()]
    yield tag("g", *places, class_="x-ticks")
    yield tag("path", class_="axis", d=f"M{LEFT} {TOP}V{bottom}H{right}")
    yield _text((LEFT + right) / 2, HEIGHT - 6, chart.x_label, "label")
    yield _text(14, (TOP + bottom) / 2, chart.y_label, "label", f"rotate(-90 14 {(TOP + bottom) / 2})")
    for name, value in _levels(chart):
        y = y_axis(value)
        yield tag("path", class_="level", d=f"M{LEFT} {y}H{right}")
        yield _text(right - 2, y - 4, name, "tick end")
    for name, value in chart.marks:
        if x_axis.low < value < x_axis.high:
            x = x_axis(value)
            yield tag("path", class_="level", d=f"M{x} {TOP}V{bottom}")
            yield _text(x + 4, TOP + 10, name, "tick start")


def _text(x: float, y: float, text: str, kind: str, transform: str | None = None) -> Html:
    return tag("text", text, x=round(x, 1), y=round(y, 1), class_=kind, transform=transform)


def _curve(index: int, line: Line, x_axis: Axis, y_axis: Axis) -> Html:
    colour, band = index % COLOURS, None
    if line.low is not None and line.high is not None:
        rows = list(zip(line.x, line.low, line.high, strict=True))
        ends = [(x, low, high) for x, low, high in rows if math.isfinite(low) and math.isfinite(high)]
        there = [f"{x_axis(x)} {y_axis(high)}" for x, _, high in ends]
        back = [f"{x_axis(x)} {y_axis(low)}" for x, low, _ in reversed(ends)]
        band = tag("path", class_=f"band c{colour}", d=f"M{'L'.join([*there, *back])}Z") if ends else None
        if len(ends) == 1:  # an area of no width would not be seen
            band = tag("path", class_=f"line c{colour}", d=f"M{there[0]}L{back[0]}")
    # Without a line to a neighbour a point would not be seen, and with few points each should be.
    dots = len(line.x) <= 40
    path, pen = [], "M"
    for x, y in zip(line.x, line.y, strict=True):
        if not math.isfinite(y):
            pen = "M"
            continue
        path.append(f"{pen}{x_axis(x)} {y_axis(y)}")
        pen = "L"
    # A line of no length with round ends is a dot, which stays round when the group is stretched.
    points = "".join(f"M{step[1:]}h0" for step in path) if dots or len(path) == 1 else ""
    return join(
        band,
        tag("path", class_=f"line c{colour} d{index % DASHES}", d="".join(path)),
        tag("path", class_=f"dots c{colour}", d=points) if points else None,
    )


def _legend(index: int, name: str) -> Html:
    colour = index % COLOURS
    sample = tag("path", class_=f"line c{colour} d{index % DASHES}", d="M0 6H28")
    return tag("li", tag("svg", sample, viewBox="0 0 28 12", class_="sample", aria_hidden="true"), " ", name)


def _spoken(line: Line) -> str:
    """A line in words."""
    finite = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
    ys = [y for _, y in finite]
    return (
        f"{line.name} from {number(ys[0])} to {number(ys[-1])}, lowest {number(min(ys))}, highest {number(max(ys))}, "
        f"{len(ys)} point{'s' if len(ys) > 1 else ''}"
    )


def _payload(chart: Chart, lines: Sequence[Line], x_axis: Axis) -> dict:
    """What the script needs for the cursor, the values and the zoom."""

    def short(values: Sequence[float] | None) -> list[float | None] | None:
        return None if values is None else [float(f"{v:.4g}") if math.isfinite(v) else None for v in values]

    return {
        "x": chart.x_label,
        "y": chart.y_label,
        "range": [x_axis.low, x_axis.high],
        "lines": [
            {
                "name": line.name,
                "x": list(line.x),
                "y": short(line.y),
                "low": short(line.low),
                "high": short(line.high),
            }
            for line in lines
        ],
    }


def number(value: float) -> str:
    """A number in few characters."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        text = f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        return text.replace("-", "\u2212")
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", "\u2212")


# --- histograms ---------------------------------------------------------------------------------------------------


def histogram(name: str, values: np.ndarray) -> Html:
    """A figure with the counts of values in equal bins, and mean and standard deviation in its caption."""
    values = values[np.isfinite(values)].astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if low == high:
        return _figure(name, f"always {number(low)}", [1.0], low, high)
    counts, _ = np.histogram(values, bins=BINS, range=(low, high))
    words = f"{number(float(values.mean()))} \u00b1 {number(float(values.std()))}"
    return _figure(name, words, (counts / counts.max()).tolist(), low, high)


def _figure(name: str, words: str, heights: Sequence[float], low: float, high: float) -> Html:
    step, tall = SMALL_WIDTH / len(heights), SMALL_HEIGHT - SMALL_BOTTOM - 2
    # A count that is not zero is seen, however small it is.
    tops = [(index * step, max(height * tall, 1.0 if height else 0.0)) for index, height in enumerate(heights)]
    bars = "".join(
        f"M{x:.1f} {SMALL_HEIGHT - SMALL_BOTTOM}v{-top:.1f}h{max(step - 1, 1):.1f}v{top:.1f}z"
        for x, top in tops
        if top
    )
    ends = [
        tag("text", number(low), x=0, y=SMALL_HEIGHT - 3, class_="tick start"),
        tag("text", number(high), x=SMALL_WIDTH, y=SMALL_HEIGHT - 3, class_="tick end"),
    ]
    svg = tag(
        "svg",
        tag("path", class_="bars", d=bars),
        tag("path", class_="axis", d=f"M0 {SMALL_HEIGHT - SMALL_BOTTOM}H{SMALL_WIDTH}"),
        *(ends if low != high else ends[:1]),
        viewBox=f"0 0 {SMALL_WIDTH} {SMALL_HEIGHT}",
        role="img",
        aria_label=f"histogram of {name}: {words}, from {number(low)} to {number(high)}",
    )
    return tag("figure", tag("figcaption", tag("strong", name), f" {words}"), svg)
