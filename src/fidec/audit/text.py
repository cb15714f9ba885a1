"""The result of an audit, and the end of a training, in sentences: the most important first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fidec.ops import account
from fidec.store.rundir import RunDirectory
from fidec.train.stored import read_config

# Nats. docs/audit.md has the measurements: below, at and above the distances that were best on three tasks.
HARDLY, NEAR, FAR = 0.05, 0.5, 0.7
FACTOR, MARGIN = 1.5, 0.15  # by which nearest neighbours may exceed the formula


def follows(nats: float) -> str:
    """What follows from the mean KL of a policy from its base policy."""
    best = "0.1 to 0.3 nats was best on three tasks"
    if nats < HARDLY:
        return f"The policy has hardly moved, {number(nats)} nats: a larger budget can be tried ({best})."
    if nats < NEAR:
        return f"{number(nats)} nats is a moderate distance ({best})."
    compare = "compare with the base policy by `fidec eval --base`"
    if nats < FAR:
        return f"{number(nats)} nats is far ({best}): {compare}."
    return (
        f"{number(nats)} nats may be too far ({best}, 0.77 to 1.25 ruined two of them, and a maze was solved only at "
        f"0.87): {compare}, and lower the budget if it is worse."
    )


def sentences(result: dict[str, Any]) -> list[str]:
    """What the numbers of `audit` say."""
    states, kl = result["states"], result["kl"]
    text = [_spent(result), *_account(result.get("account"))]
    if (chunk := result.get("chunk", 1)) > 1:
        text.append(f"The policy chooses chunks of {chunk} steps. All numbers are of whole chunks.")
    if kl["mean"] is not None:
        text.append(follows(kl["mean"]))
        low, median, high = (number(kl["quantiles"][q]) for q in ("5", "50", "95"))
        text.append(f"Over {states} states the KL is {low} to {high} nats (5 % to 95 %), median {median}.")
        density, contraction = number(kl["mean"] - kl["contraction"]), number(kl["contraction"])
        text.append(
            f"Of its mean, {density} is lower density and {contraction} contraction, -log det(I + grad delta)."
        )
        text += _neighbours(kl)
    if kl["standard_error_of_a_state"] is not None and np.isfinite(kl["standard_error_of_a_state"]):
        error = number(kl["standard_error_of_a_state"])
        text.append(f"The KL of one state has a standard error of {error} ({result['samples']} actions).")
        if kl["spread_over_states"] is not None:
            spread = number(kl["spread_over_states"])
            text.append(f"Without that error the standard deviation over states is {spread}.")
    if kl["folded_actions"] > 0:
        text.append(
            f"WARNING: at {_percent(kl['folded_actions'])} of actions ({_percent(kl['folded_states'])} of states "
            "have one) the residual map folds, det(I + grad delta) <= 0: several base actions may move to one "
            "point, and the KL above is only a lower bound."
        )
    if kl["not_finite_states"]:
        text.append(
            f"WARNING: at {kl['not_finite_states']} of {states} states the KL is not finite; they are left out. The "
            "flow's density at the refined actions is too small for float32."
        )
    return [*text, *_solver(result), *_displacement(result), _outside(result["outside"]), _distances(result)]


def _spent(result: dict[str, Any]) -> str:
    kl, penalty = result["kl"], result["penalty"]
    if kl["mean"] is None:
        return "The KL could not be measured: it is not finite at any state."
    *others, last = (f"{number(row['nats'])} at {_percent(row['share'])}" for row in kl["above"])
    spent = f"{_interval(kl)} nats on average, more than {', '.join(others)} and {last} of states"
    if penalty["unit"] == "nats":
        return (
            f"The budget was {number(penalty['budget'])} nats; the policy spends {spent}. "
            f"Training's own estimate at the same actions is {_interval(penalty)}."
        )
    return (
        f"Training kept the penalty at {number(penalty['mean'])} (budget {number(penalty['budget'])}); "
        f"measured as KL the policy spends {spent}."
    )


def _account(parts: dict[str, Any] | None) -> list[str]:
    """How the policy acts, and what that costs; nothing for one that draws one action with the whole noise."""
    if parts is None or parts["total"] is None or (parts["candidates"] == 1 and parts["noise"] == 1):
        return []
    return [
        f"As it acts, it chose {number(parts['chose'])} nats (the best of {parts['candidates']}: at most "
        f"{number(parts['most_chosen'])}), moved {number(parts['moved'])} at the chosen actions, and "
        f"{narrowed(parts['noise'], parts['narrowed'])}."
    ]


def _neighbours(kl: dict[str, Any]) -> list[str]:
    """The KL by distances between samples, and a warning where it is far above the formula."""
    near = kl["by_neighbours"]
    if near is None or kl["mean"] is None:
        return []
    if near <= FACTOR * max(kl["mean"], HARDLY) + MARGIN:
        return [f"By nearest neighbours it is {number(near)} nats."]
    return [
        f"WARNING: by nearest neighbours it is {number(near)} nats: the map may lay one mode of the behaviour on "
        "another, which the formula does not see. The KL above is a lower bound."
    ]


def narrowed(noise: float, nats: float) -> str:
    """What less noise costs."""
    if noise == 1:
        return "drew with all of the noise"
    if noise == 0:
        return "drew without noise: one action instead of many, so the KL is infinite"
    return f"narrowed {number(nats)} by drawing with {noise:g} of the noise, which stays among the clone's actions"


def _solver(result: dict[str, Any]) -> list[str]:
    solver = result["solver"]
    text = f"Solver: RK4, up to {solver['most_steps']} steps."
    if solver["change_of_mean"] is not None:
        change = number(abs(solver["change_of_mean"]))
        text += f" The last doubling of the steps changed the mean KL by {change} nats."
    tolerance = f"{solver['tolerance_share']:.0%}"
    if solver["unsettled_states"]:
        return [
            text,
            f"WARNING: at {solver['unsettled_states']} of {result['states']} states it changed the KL by more than "
            f"{tolerance}: the KL has not settled there, do not rely on it.",
        ]
    distance = number(solver["distance_to_drawn_actions"])
    return [
        f"{text} No state changed by more than {tolerance} (or {solver['tolerance_nats']} nats).",
        f"The policy's own sampler ends {distance} away from the accurate solution (root mean square).",
    ]


def _displacement(result: dict[str, Any]) -> list[str]:
    moved, direction = result["displacement"], result["direction"]
    text = [
        f"Actions move by {number(moved['rms'])} (root mean square; median {number(moved['quantiles'].get('50'))}); "
        "the action bounds are 2 apart."
    ]
    if direction["share_along_score"] is not None:
        text.append(
            f"{_percent(direction['share_along_score'])} of the squared displacement is along the score "
            f"({_percent(direction['share_if_isotropic'])} without a preferred direction), mean cosine "
            f"{direction['mean_cosine']:+.2f}."
        )
    return text


def _outside(outside: dict[str, Any]) -> str:
    base, refined = outside["base"], outside["refined"]
    return (
        f"Outside the action bounds, so clipped: {_percent(base['components'])} of components before refinement and "
        f"{_percent(refined['components'])} after it ({_percent(refined['actions'])} of actions). Clipping both "
        "policies can only lower the KL."
    )


def _distances(result: dict[str, Any]) -> str:
    near = result["neighbours"]
    if "skipped" in near:
        return f"Distance to data actions: skipped, {near['skipped']}."
    rows = [f"{number(row['median'])} ({number(row['quantile_90'])}) for {name}" for name, row in near.items()]
    return f"Distance to the closest data action of similar states, median (90 %): {', '.join(rows)} actions."


def _interval(row: dict[str, Any]) -> str:
    known = row["low"] is not None and np.isfinite(row["low"])
    return number(row["mean"]) + (f" [{number(row['low'])}, {number(row['high'])}]" if known else "")


def number(value: float | None) -> str:
    """Two significant digits, three from 10 on."""
    if value is None:
        return "not finite"
    return f"{value:.3g}" if abs(value) >= 10 else f"{value:.2g}"


def _percent(share: float) -> str:
    return "<0.1 %" if 0 < share < 0.001 else f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.3g} %"


# --- the end of a training ----------------------------------------------------------------------------------------


def end_of_training(directory: Path) -> str | None:
    """How the penalty of a run ended, and what follows. None if the method has no budget with a multiplier."""
    run = RunDirectory.open(directory, read_only=True)
    config = read_config(run)
    rows = [row for row in run.read_jsonl("train") if {"training/penalty", "training/multiplier"} <= row.keys()]
    if not rows or not hasattr(config.options, "trust_region"):
        return None
    # While the budget grows, the penalty is below it on purpose.
    rows = [row for row in rows if row["step"] > getattr(config.options, "warmup", 0)] or rows[-1:]
    penalties, multipliers = ([row[f"training/{name}"] for row in rows] for name in ("penalty", "multiplier"))
    controlled = getattr(config.options, "multiplier", None) == "controlled"
    how = {"playable": config.env_name is not None, "controlled": controlled}
    text = trust_region_summary(penalties, multipliers, *config.options.trust_region(), **how)
    return (_choice(config.candidates or 1, config.noise) + text).replace("RUN", str(directory))


def _choice(candidates: int, noise: float | None) -> str:
    """What the policy chooses, which is no part of the budget; empty if it draws one action with the whole noise."""
    chose = f"chose the best of {candidates} (at most {number(account.best_of_nats(candidates))} nats)"
    parts = [chose] if candidates > 1 else []
    parts += [] if noise in (None, 1) else [f"drew with {noise:g} of the noise"]
    return f"{', '.join(parts)}, which stays among the clone's actions; " if parts else ""


def trust_region_summary(
    penalties: Sequence[float],
    multipliers: Sequence[float],
    budget: float,
    unit: str,
    playable: bool = False,
    controlled: bool = False,
) -> str:
    """The penalty against its budget. Both lists have a mean for each row of the log.

    In nats the distance comes first, and the last sentence says how to compare the policy with the clone. A run with
    an environment is `playable`. A `controlled` multiplier finds its scale from any start.
    """
    penalty, first, last = penalties[-1], multipliers[0], multipliers[-1]
    near = sum(budget / 2 <= each <= 2 * budget for each in penalties) / len(penalties)
    log = f"in {100 * near:.0f} % of the log; multiplier {number(first)} at first, {number(last)} at the end."
    advice = "train longer." if controlled else "train longer, or {} --algo.multiplier-init."
    if penalty > 2 * budget:
        log += f" The penalty exceeds its budget and the multiplier rises: {advice.format('raise')}"
    elif penalty < budget / 2 and last > 0:
        log += f" The penalty is far below its budget and the multiplier falls: {advice.format('lower')}"
    elif penalty < budget / 2:
        log += " The multiplier is 0: the constraint does not limit the displacement."
    if unit != "nats":
        return (
            f"trust region: penalty {number(penalty)} at the end, budget {number(budget)} (not in nats), within a "
            f"factor of 2 of it {log} `fidec audit RUN` measures the KL in nats."
        )
    return (
        f"moved {number(penalty)} nats from the clone (budget {number(budget)}). {follows(penalty)} The penalty was "
        f"within a factor of 2 of its budget {log} The distance is training's estimate: `fidec audit RUN` measures "
        f"the KL. `fidec select RUN{'' if playable else ' --env ID'}` plays clone and policy with a few episodes."
    )
