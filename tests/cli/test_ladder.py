"""`fidec eval --ladder`: factors of noise and displacement on the same episodes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fidec.algos import Algorithm
from fidec.envs.evaluation import Episode, compare, measure
from fidec.errors import ConfigError
from fidec.report.figures import draw_ladder
from fidec.train.acting import PUBLISHED
from fidec.train.evaluation import cells_of
from fidec.train.policy import Policy
from fidec.types import Spec
from helpers.runs import check_error

PNG = b"\x89PNG"


def test_a_ladder_of_a_policy(cli, tiny, tiny_env, compile_cache, tmp_path):
    state, info = (
        {"weight": np.full((3, 2), 0.1, np.float32), "count": None, "slow": None},
        {"env": tiny_env, "step": 20},
    )
    Policy("tiny", tiny.TinyConfig(), Spec((3,), 2), state, info).save(tmp_path / "run")
    same = ("--envs", 1, "--seed", 3)
    code, out, err = cli("eval", "run", "--ladder", "--episodes", 3, "--json", *same)
    assert code == 0, err
    result = json.loads(out)
    assert (result["step"], result["seed"], result["against"], result["of"]) == (20, 3, "strength 0", "success")
    cells = {(cell["noise"], cell["strength"]): cell for cell in result["cells"]}
    assert list(cells) == [(noise, strength) for noise in (0, 0.5, 1) for strength in (0, 0.3, 1)]
    assert all(cell["summary"]["n"] == len(cell["episodes"]) == 3 for cell in cells.values())
    assert [at for at, cell in cells.items() if cell["gain"] is None] == [(0, 0), (0.5, 0), (1, 0)]
    # The tiny method moves its action by noise alone: without noise and at strength 0 it is the base policy.
    alone = json.loads(cli("eval", "run", "--base", "--episodes", 3, "--json", *same)[1])
    found = {at for at, cell in cells.items() if cell["episodes"] == alone["episodes"]["base"]}
    assert found == {(noise, strength) for noise, strength in cells if 0 in (noise, strength)}
    assert cells[1, 1]["episodes"] == alone["episodes"]["refined"]
    assert cells[1, 1]["gain"] == alone["gain"]
    assert (tmp_path / "run" / "ladder.png").read_bytes().startswith(PNG)

    code, out, err = cli(
        "eval", "run", "--ladder", "--episodes=2", "--noises=1", "--strengths=0.5", "--figure=a/b.png"
    )
    assert code == 0, err
    lines = out.splitlines()
    assert lines[1].split()[-4:] == ["success", "against", "strength", "0"]
    assert [line.split()[:2] for line in lines[2:4]] == [["1", "0"], ["1", "0.5"]]
    assert lines[-1] == "figure: a/b.png"
    assert (tmp_path / "a" / "b.png").read_bytes().startswith(PNG)
    assert "episode 4/4" in err

    for words, text in (
        (("--ladder", "--strengths", -1), "strength must be a finite number"),
        (("--ladder", "--noises", "nan"), "noise must be a finite number"),
        (("--ladder", "--base"), "--base cannot be given with --ladder: strength 0 is the base policy"),
        (("--ladder", "--noise", 0), "--noise cannot be given with --ladder: give --noises"),
        (("--noises", 0, 1), "--noises is for a ladder: add --ladder"),
        (("--figure", "x.png"), "--figure is for a ladder"),
    ):
        check_error(cli("eval", "run", *words), 2, text)
    (tmp_path / "file").touch()
    check_error(cli("eval", "run", "--ladder", "--figure", "file/x.png"), 1, "file")


def assessed(act: Any) -> Any:
    none: Any = None
    return SimpleNamespace(act=PUBLISHED, policy=SimpleNamespace(algorithm=Algorithm(none, none, act, none)))


def test_a_method_without_a_displacement_has_noise_alone():
    still = assessed(lambda state, observations, key, noise=1.0: None)
    assert cells_of(still) == {(0.0, 1.0): (1.0, 1.0), (0.5, 1.0): (1.0, 1.0), (1.0, 1.0): (1.0, 1.0)}
    assert list(cells_of(still, noises=(2.0,))) == [(1.0, 1.0), (2.0, 1.0)]
    with pytest.raises(ConfigError, match=r"does not move a base action by a displacement, so strength must be 1"):
        cells_of(still, strengths=(0.5,))
    with pytest.raises(ConfigError, match="cannot scale its noise"):
        cells_of(assessed(lambda state, observations, key: None))
    moved = assessed(lambda state, observations, key, noise=1.0, strength=1.0: None)
    assert cells_of(moved, (0.5,), (1.0, 1.0)) == {(0.5, 0.0): (0.5, 0.0), (0.5, 1.0): (0.5, 0.0)}


def test_a_figure_without_intervals_and_against_noise(tmp_path):
    """One episode has no interval of the return, and a cell whose episodes all failed has no mean."""
    summary = {"return": 1.0, "return_low": None, "return_high": None}
    cells = [{"noise": n, "strength": 1.0, "summary": summary, "episodes": [{}]} for n in (0.0, 1.0)]
    cells.append({"noise": 2.0, "strength": 1.0, "summary": dict.fromkeys(summary), "episodes": [{}]})
    result = {"algo": "bc", "step": 1, "environment": "Own-v0", "candidates": 1, "of": "return", "against": "noise 1"}
    path = draw_ladder(result | {"cells": cells}, tmp_path / "new" / "ladder.png")
    assert path.read_bytes().startswith(PNG)


def test_all_cells_are_compared_by_one_measure():
    """An environment may report success only when it succeeds: two failures are a difference of 0 in success."""
    failed = [Episode(0, 0, 0, "ok", -3.0, 5, None)]
    reached = [Episode(0, 0, 0, "ok", -1.0, 5, 1.0)]
    assert measure(failed, reached) == "success"
    assert measure(failed) == "return"
    assert compare(failed, failed, measure(failed, reached))[:2] == ("success", 0.0)
    assert compare(failed, reached)[:2] == ("success", 1.0)
