"""An audit for a reader: sentences and one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fidec.audit.measure import Audit
from fidec.audit.summary import cosines, state_kl
from fidec.plots import BLUE, GREY, INK, ORANGE, new_figure, save_figure, style_axes


def sentences(summary: dict[str, Any]) -> list[str]:
    """What the figures say, most important first."""
    said = [_spent(summary)]
    kl, solver = summary["kl"], summary["solver"]
    if kl["mean"] is not None:
        q = kl["quantiles"]
        said.append(
            f"Over {summary['states']} states KL is {_g(q['5'])} to {_g(q['95'])} nats (5 % to 95 %), median "
            f"{_g(q['50'])}." + _noise(summary)
        )
    if kl["folded_actions"] > 0:
        said.append(
            f"WARNING: at {_percent(kl['folded_actions'])} of actions ({_percent(kl['folded_states'])} of states "
            "have one) the residual map folds, det(I + grad delta) <= 0: several base actions may go to one place, "
            "and the KL above is only a lower bound."
        )
    if kl["not_finite_states"]:
        said.append(
            f"WARNING: at {kl['not_finite_states']} of {summary['states']} states the KL is not finite, and they are "
            "left out: the refined actions lie where the flow has no density that float32 can follow."
        )
    said += [_solved(summary, solver), *_moved(summary), _outside(summary["outside"])]
    said.append(_near(summary["neighbours"]))
    return said


def _spent(summary: dict[str, Any]) -> str:
    kl, penalty = summary["kl"], summary["penalty"]
    if kl["mean"] is None:
        return "The KL could not be measured: it is not finite at any state."
    *others, last = (f"{_g(row['nats'])} on {_percent(row['share'])}" for row in kl["above"])
    most = f"more than {', '.join(others)} and {last}"
    spends = f"the policy spends {_interval(kl)}"
    if penalty["unit"] == "nats":
        return (
            f"The budget was {_g(penalty['budget'])} nats; {spends} on average, {most} of states. "
            f"Training's own estimate of it, on the same actions, is {_interval(penalty)}."
        )
    return (
        f"Training held the penalty at {_g(penalty['mean'])} (budget {_g(penalty['budget'])}); measured as KL "
        f"{spends} nats on average, {most} of states."
    )


def _noise(summary: dict[str, Any]) -> str:
    kl = summary["kl"]
    error = kl["standard_error_of_a_state"]
    if error is None or not np.isfinite(error):
        return ""
    spread = kl["spread_over_states"]
    rest = "" if spread is None else f"; without it the states differ by {_g(spread)} (standard deviation)"
    return f" A state's KL is known to {_g(error)} (standard error from {summary['samples']} actions){rest}."


def _solved(summary: dict[str, Any], solver: dict[str, Any]) -> str:
    text = f"Solver: RK4, up to {solver['most_steps']} steps"
    if solver["change_of_mean"] is not None:
        text += f"; halving the step changed the mean KL by {_g(abs(solver['change_of_mean']))} nats"
    if solver["unsettled_states"]:
        return (
            f"WARNING: {text}, and at {solver['unsettled_states']} of {summary['states']} states by more than "
            f"{solver['tolerance_share']:.0%} of their own: the KL is not settled there, do not rely on it."
        )
    return (
        f"{text} and of no state by more than {solver['tolerance_share']:.0%} (or {solver['tolerance_nats']} nats). "
        f"The policy's own sampler is {_g(solver['distance_to_drawn_actions'])} away from it (root mean square)."
    )


def _moved(summary: dict[str, Any]) -> list[str]:
    moved, direction = summary["displacement"], summary["direction"]
    said = [
        f"Actions move by {_g(moved['rms'])} (root mean square; half of them by more than "
        f"{_g(moved['quantiles']['50'])}), in a box of side 2."
    ]
    if direction["share_along_score"] is not None:
        said.append(
            f"{_percent(direction['share_along_score'])} of the squared displacement is along the score "
            f"({_percent(direction['share_if_isotropic'])} if it had no preferred direction), mean cosine "
            f"{direction['mean_cosine']:+.2f}."
        )
    return said


def _outside(outside: dict[str, Any]) -> str:
    base, refined = outside["base"], outside["refined"]
    return (
        f"Outside the box, so clipped: {_percent(base['components'])} of components before refinement and "
        f"{_percent(refined['components'])} after ({_percent(refined['actions'])} of actions). Clipping both "
        "policies can only lower the KL."
    )


def _near(found: dict[str, Any]) -> str:
    if "skipped" in found:
        return f"Distance to data actions: skipped, {found['skipped']}."
    texts = [f"{_g(row['median'])} ({_g(row['quantile_90'])}) for {name}" for name, row in found.items()]
    return f"Distance to the closest data action of similar states, median (90 %): {', '.join(texts)} actions."


def _interval(row: dict[str, Any]) -> str:
    known = row["low"] is not None and np.isfinite(row["low"])
    return _g(row["mean"]) + (f" [{_g(row['low'])}, {_g(row['high'])}]" if known else "")


def _g(value: float | None) -> str:
    """Two significant digits, three from 10 on."""
    if value is None:
        return "not finite"
    return f"{value:.3g}" if abs(value) >= 10 else f"{value:.2g}"


def _percent(share: float) -> str:
    return "<0.1 %" if 0 < share < 0.001 else f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.3g} %"


# --- the picture --------------------------------------------------------------------------------------------


def draw(audit: Audit, neighbours: dict[str, np.ndarray] | str, title: str, path: Path) -> None:
    """A PNG of four panels: KL of the states, lengths, directions, distances to data actions."""
    figure = new_figure(11, 7.4)
    panels = figure.subplots(2, 2)
    _draw_kl(panels[0, 0], audit)
    _draw_penalty(panels[0, 1], audit)
    _draw_direction(panels[1, 0], audit)
    _draw_neighbours(panels[1, 1], neighbours)
    for panel in panels.flat:
        style_axes(panel)
    figure.suptitle(title, color=INK)
    save_figure(figure, path)


def _draw_kl(panel: Axes, audit: Audit) -> None:
    kl = state_kl(audit)[0]
    kl = kl[np.isfinite(kl)]
    panel.set(title="True KL from the behaviour flow", xlabel="KL of a state (nats)", ylabel="states")
    if not len(kl):
        _say(panel, "not finite at any state")
        return
    left, right = _range(audit, kl)
    beyond = int((kl > right).sum())
    panel.hist(np.minimum(kl, right), bins=np.linspace(left, right, 33).tolist(), color=BLUE, alpha=0.85)
    label = f"mean {_g(kl.mean())}" + (f"; last bar: {beyond} beyond" if beyond else "")
    panel.axvline(kl.mean(), color=ORANGE, linewidth=2, label=label)
    if audit.unit == "nats":
        panel.axvline(audit.budget, color=INK, linewidth=1.4, linestyle="--", label=f"budget {_g(audit.budget)}")
    panel.legend(frameon=False)


def _range(audit: Audit, kl: np.ndarray) -> tuple[float, float]:
    """Of the axes: a few states far out must not squeeze the rest into one bar."""
    needed = 1.2 * audit.budget if audit.unit == "nats" else 1e-3
    return min(0.0, float(kl.min())), max(1.25 * float(np.percentile(kl, 98)), needed)


def _draw_penalty(panel: Axes, audit: Audit) -> None:
    """Each state's penalty against its KL: does what training constrains order the states as the KL does?"""
    kl, penalty = state_kl(audit)[0], audit.penalty.mean(axis=1)
    unit = "nats" if audit.unit == "nats" else "its own unit"
    panel.set(title="What training constrained", xlabel=f"penalty of a state ({unit})", ylabel="KL of a state (nats)")
    used = np.isfinite(kl) & np.isfinite(penalty)
    if not used.any():
        _say(panel, "not finite at any state")
        return
    top = _range(audit, kl[used])[1]
    for chosen, marker in ((used & (kl <= top), "o"), (used & (kl > top), "^")):
        panel.scatter(penalty[chosen], np.minimum(kl[chosen], top), s=14, color=BLUE, marker=marker, alpha=0.6)
    if penalty[used].min() > 0:
        panel.set_xscale("log")
    panel.axvline(audit.budget, color=INK, linewidth=1.4, linestyle="--", label=f"budget {_g(audit.budget)}")
    mean = penalty[used].mean()
    panel.axvline(mean, color=ORANGE, linewidth=2, label=f"mean {_g(mean)}")
    panel.legend(framealpha=0.9, edgecolor="none")


def _draw_direction(panel: Axes, audit: Audit) -> None:
    delta = audit.moved.displacement
    cosine = cosines(delta, audit.score)
    d = delta.shape[-1]
    panel.set(title="Direction of the displacement", xlabel="cosine with the score of the flow", ylabel="density")
    used = np.isfinite(cosine)
    if not used.any():
        _say(panel, "nothing moves")
        return
    edges = np.linspace(-1, 1, 41)
    heights, *_ = panel.hist(
        cosine[used], bins=edges.tolist(), density=True, color=BLUE, alpha=0.85, label="this policy"
    )
    panel.set(ylim=(0, 1.3 * float(np.max(heights))))  # room for the legend
    if d > 2:  # in the plane a random direction has a density that is infinite at both ends
        x = np.linspace(-1, 1, 401)
        height = np.clip(1 - x**2, 0, None) ** ((d - 3) / 2)
        height /= np.sum(0.5 * (height[1:] + height[:-1]) * np.diff(x))
        panel.plot(x, height, color=INK, linestyle="--", linewidth=1.4, label=f"random direction, d = {d}")
    panel.legend(frameon=False, loc="upper right")


def _draw_neighbours(panel: Axes, neighbours: dict[str, np.ndarray] | str) -> None:
    panel.set(title="Closest data action of similar states", xlabel="distance (box of side 2)", ylabel="share below")
    if isinstance(neighbours, str):
        _say(panel, "no distances: " + neighbours)
        return
    # The dashed line last: it stays visible where two agree.
    styles = {
        "data": (GREY, "-", "logged actions"),
        "refined": (ORANGE, "-", "refined"),
        "base": (BLUE, "--", "base"),
    }
    for name, (colour, line, label) in styles.items():
        ordered = np.quantile(neighbours[name], np.linspace(0, 1, 201))
        panel.plot(ordered, np.linspace(0, 1, 201), color=colour, linestyle=line, linewidth=2, label=label)
    panel.set(ylim=(0, 1.02), xlim=(0, None))
    panel.legend(frameon=False, loc="lower right")


def _say(panel: Axes, text: str) -> None:
    panel.text(0.5, 0.5, text, ha="center", va="center", color=GREY, wrap=True, transform=panel.transAxes)
