"""A saved policy with several factors of its noise and of its displacement, on the same seeded episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from fidec.envs.evaluate import compare, measure
from fidec.envs.pool import Episode
from fidec.store import files
from fidec.train.acting import dials, has_dial, select_act
from fidec.train.assess import Assessment

NOISES = (0.0, 0.5, 1.0)
STRENGTHS = (0.0, 0.3, 1.0)
Cell = tuple[float, float]  # noise and strength


def cells_of(
    assessment: Assessment, noises: Sequence[float] | None = None, strengths: Sequence[float] | None = None
) -> dict[Cell, Cell]:
    """The cells to play, each with the cell that it is compared with.

    A method that moves a base action is compared with strength 0 of the same noise, its base policy. Another method
    has strength 1 alone and is compared with noise 1. What is compared with is always played. Raises ConfigError for
    factors that the method does not have or that are no factors.
    """
    act = select_act(assessment.policy.algorithm, assessment.candidates)
    if strengths is None:
        strengths = STRENGTHS if has_dial(act, "strength") else (1.0,)
    noises = NOISES if noises is None else noises
    for noise, strength in product(noises, strengths):
        dials(act, noise=noise, strength=strength)
    if has_dial(act, "strength"):
        strengths, reference = (0.0, *strengths), lambda noise, strength: (noise, 0.0)
    else:
        noises, reference = (*noises, 1.0), lambda noise, strength: (1.0, strength)
    return {cell: reference(*cell) for cell in product(sorted(set(noises)), sorted(set(strengths)))}


def ladder(
    assessment: Assessment,
    episodes: int,
    cells: dict[Cell, Cell],
    on_episode: Callable[[Episode], None] | None = None,
) -> dict[str, Any]:
    """Play every cell with one set of environment processes, and compare it. `cells` is that of `cells_of`."""
    played = {}
    with assessment.evaluator(episodes) as evaluator:
        for noise, strength in cells:
            played[noise, strength] = evaluator(
                assessment.policy.algorithm,
                assessment.policy.state,
                assessment.step,
                assessment.seed,
                candidates=assessment.candidates,
                noise=noise,
                strength=strength,
                on_episode=on_episode,
            )
    of = measure(*(evaluation.episodes for evaluation in played.values()))
    rows = []
    for cell, (summary, found, _) in played.items():
        row = {"noise": cell[0], "strength": cell[1], "summary": summary, "gain": None}
        if (other := cells[cell]) != cell:
            row["gain"] = files.to_builtin(compare(played[other].episodes, found, of)._asdict())
        rows.append(row | {"episodes": [episode.row() for episode in found]})
    against = "strength 0" if any(strength == 0 for _, strength in cells) else "noise 1"
    facts = assessment.facts() | {"algo": assessment.policy.algo, "candidates": assessment.candidates}
    return facts | {"of": of, "against": against, "cells": rows}
