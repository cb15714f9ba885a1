"""Small histograms as SVG."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fidec.report.page.chart import number
from fidec.report.page.html import Html, tag

WIDTH, HEIGHT, BOTTOM = 220, 84, 16
BINS = 30


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
    step, tall = WIDTH / len(heights), HEIGHT - BOTTOM - 2
    # A count that is not zero is seen, however small it is.
    tops = [(index * step, max(height * tall, 1.0 if height else 0.0)) for index, height in enumerate(heights)]
    bars = "".join(
        f"M{x:.1f} {HEIGHT - BOTTOM}v{-top:.1f}h{max(step - 1, 1):.1f}v{top:.1f}z" for x, top in tops if top
    )
    ends = [
        tag("text", number(low), x=0, y=HEIGHT - 3, class_="tick start"),
        tag("text", number(high), x=WIDTH, y=HEIGHT - 3, class_="tick end"),
    ]
    svg = tag(
        "svg",
        tag("path", class_="bars", d=bars),
        tag("path", class_="axis", d=f"M0 {HEIGHT - BOTTOM}H{WIDTH}"),
        *(ends if low != high else ends[:1]),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"histogram of {name}: {words}, from {number(low)} to {number(high)}",
    )
    return tag("figure", tag("figcaption", tag("strong", name), f" {words}"), svg)
