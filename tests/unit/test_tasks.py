"""The published settings, spot-checked against the tables they were typed from."""

from __future__ import annotations

import dataclasses

import pytest

from fidec import algos, tasks
from fidec.train.config import resolve_options


@pytest.mark.parametrize(
    ("task", "algo", "preset", "expected"),
    [
        ("cube-single-play-singletask-task2-v0", "fidec", "recommended", {"budget": 0.001, "discount": 0.99}),
        ("antmaze-giant-navigate-singletask-v0", "fidec", "paper", {"discount": 0.995, "q_aggregate": "min"}),
        ("puzzle-3x3-play-singletask-v0", "fidec", "paper", {"budget": 0.0005}),
        ("puzzle-3x3-play-singletask-v0", "deflow", "paper", {"budget": 0.005}),
        ("puzzle-3x3-play-singletask-v0", "fidec", "released", {"budget": 0.005}),
        ("visual-puzzle-4x4-play-singletask-task1-v0", "deflow", "recommended", {"budget": 0.0005}),
        ("ogbench:scene-play-singletask-task1-v0", "fql", "recommended", {"alpha": 300.0}),
        ("antsoccer-arena-navigate-singletask-v0", "ifql", "recommended", {"samples": 64, "discount": 0.995}),
        ("cube-double-play-singletask-v0", "rebrac", "released", {"actor_penalty": 0.1, "critic_penalty": 0.0}),
        ("puzzle-4x4-play-singletask-v0", "fbrac", "recommended", {"alpha": 300.0}),
        ("antmaze-large-navigate-singletask-v0", "fawac", "recommended", {"alpha": 3.0}),
        ("humanoidmaze-large-navigate-singletask-v0", "iql", "recommended", {"alpha": 10.0, "discount": 0.995}),
        ("antmaze-large-navigate-singletask-v0", "idql", "recommended", {"expectile": 0.7, "hidden": (512, 512)}),
        ("cube-single-play-singletask-v0", "idql", "recommended", {"expectile": 0.9, "hidden": (256, 256)}),
        ("antsoccer-arena-navigate-singletask-v0", "srpo", "recommended", {"beta": 0.03}),
        ("cube-single-play-singletask-v0", "cac", "recommended", {"eta": 0.003}),
        ("humanoidmaze-large-navigate-singletask-v0", "cac", "recommended", {"eta": 1.0}),
        ("puzzle-4x4-play-singletask-v0", "calql", "recommended", {"alpha": 0.003, "lagrange_gap": None}),
        ("antsoccer-arena-navigate-singletask-v0", "calql", "recommended", {"alpha": 5.0, "lagrange_gap": 0.2}),
        ("cube-single-play-singletask-v0", "rlpd", "recommended", {"discount": 0.99}),
        ("cube-single-play-singletask-v0", "bc", "recommended", {"learning_rate": 3e-4}),
    ],
)
def test_a_task_brings_its_published_settings(task, algo, preset, expected):
    options = dataclasses.asdict(resolve_options(algo, preset, task))
    assert {name: options[name] for name in expected} == expected


def test_fields_given_by_the_user_win():
    options = resolve_options("fql", "recommended", "scene-play-singletask-v0", alpha=3.0)
    assert (options.alpha, options.discount) == (3.0, 0.99)


def test_nothing_is_invented_where_nothing_was_published():
    assert tasks.settings("pointmaze-medium-navigate-singletask-v0") is None
    assert tasks.settings("cube-single-noisy-singletask-v0") is None
    assert resolve_options("fidec", "paper", "pointmaze-medium-navigate-singletask-v0") == algos.get(
        "fidec"
    ).configure("paper")
