"""Comparisons of written runs. Nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fidec.report.compare import compare, curves, options_table, table, title, to_json
from fidec.stats import success_difference, success_rate, wilson
from fidec.store.rundir import RunDirectory
from fidec.train.config import RunConfig
from fidec.train.protocol import resolve_options
from fidec.train.resolve import resolve
from helpers import some
from helpers.runs import check_error
from helpers.suites import SHA, own_jobs, small_jobs, write_rows, write_run

ROW = {"status": "ok", "lane": 0, "length": 5, "detail": None}


def write(
    path: Path,
    successes: list[int],
    seed: int = 0,
    algo: str = "bc",
    sha256: str = SHA,
    state: str = "done",
    starts: int = 100,
    options: dict[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """A run of two evaluations: nothing succeeds in the first, in the second the given episodes."""
    config = RunConfig(
        **{"env": "Own-v0", "data": "npz:/own.npz", "steps": 20, "eval_episodes": len(successes), **fields},
        algo=algo,
        seed=seed,
        options=resolve_options(algo, "recommended", None, **(options or {})),
    )
    evaluations, episodes = [], []
    for step, values in ((10, [0] * len(successes)), (20, successes)):
        mean = sum(values) / len(values)
        row = {"success": mean, "success_low": mean - 0.1, "success_high": mean + 0.1, "n": len(values)}
        evaluations.append({"step": step, **{f"evaluation/{k}": v for k, v in row.items()}})
        evaluations[-1] |= {"evaluation/score": 100 * mean, "evaluation/return": -5.0}
        starting = [starts * seed + k for k in range(len(values))]
        episodes += [
            {"step": step, "episode": k, "seed": starting[k], "success": v, "return": -5.0, **ROW}
            for k, v in enumerate(values)
        ]
    with RunDirectory.create(path) as directory:
        directory.write_config(resolve(config).to_json())
        directory.write_environment(
            {"dataset": {"name": "own", "source": "npz:/own.npz", "transitions": 2000, "sha256": sha256}}
        )
        write_rows(path, eval=evaluations, episodes=episodes)
        directory.write_status(state, 20)
    return path


@pytest.fixture
def runs(tmp_path):
    """Two methods with two seeds each, one of them with two budgets."""
    out = tmp_path / "runs"
    for seed in (0, 1):
        write(out / f"bc/seed{seed}", [0, 1, 0, seed], seed)
        for budget in (0.01, 0.1):
            name = f"fidec-{budget}/seed{seed}"
            good = [1, 1, 0, 1] if budget == 0.1 else [0, 1, 0, seed]
            write(out / name, good, seed, "fidec", options={"budget": budget}, batch_size=64)
    return out


def percent(interval):
    return tuple(100 * end for end in interval)


def test_seeds_are_replicates_and_options_make_other_methods(runs):
    compared = compare([runs])
    (found,) = compared.comparisons
    assert compared.left_out == {}
    assert [entry.name for entry in found.entries] == ["bc", "fidec budget=0.01", "fidec budget=0.1"]
    bc, same, better = found.entries
    assert (bc.mean, bc.episodes, bc.against) == (37.5, 8, None)
    assert bc.interval == percent(success_rate([[0, 1, 0, 0], [0, 1, 0, 1]]))
    assert same.against == (0.0, *percent(success_difference([[0] * 4] * 2)), 8)
    assert same.pairs == "8 episodes, 2 seeds"
    assert some(better.against) == (37.5, *percent(success_difference([[1, 0, 0, 1], [1, 0, 0, 0]])), 8)
    assert found.options == ["batch_size", "algo.budget"]
    assert options_table(found) == [
        ["method", "batch_size", "budget"],
        ["bc", "256", "-"],
        ["fidec budget=0.01", "64", "0.01"],
        ["fidec budget=0.1", "64", "0.1"],
    ]
    row = ["fidec budget=0.1", "75.0", "[37.5, 100.0]", "2", "8", "+37.5", "[-4.9, +75.0]", "8 episodes, 2 seeds"]
    assert table(found)[3] == row
    assert title(found).startswith("Own-v0, data own (2,000 transitions, SHA-256 abababababab), 4 episodes")
    (other,) = compare([runs], baseline="fidec budget=0.1").comparisons
    assert [entry.against and entry.against.mean for entry in other.entries] == [-37.5, -37.5, None]


def test_a_single_seed_is_compared_by_its_episodes(tmp_path):
    write(tmp_path / "a", [0, 1, 0, 0])
    write(tmp_path / "b", [1, 1, 0, 1], algo="fql")
    write(tmp_path / "c", [1, 1, 0, 1], algo="iql", starts=5, seed=3)  # no seed in common
    bc, fql, iql = compare([tmp_path]).comparisons[0].entries
    assert bc.interval == pytest.approx((15.0, 35.0))  # the evaluation's own
    assert (fql.against and fql.against.mean, fql.against and fql.against.n, fql.pairs) == (
        50.0,
        4,
        "4 episodes, 1 seed",
    )
    assert (iql.against, iql.pairs) == (None, "")


def test_success_without_spread_has_an_interval_and_a_return_has_none(tmp_path):
    """A success that is reported only when it is one: the other episodes are failures."""
    for seed in (0, 1):
        write(tmp_path / f"none{seed}", [0] * 8, seed)
        write(tmp_path / f"all{seed}", [1] * 8, seed, "fql")
        write(tmp_path / f"maze{seed}", [0] * 8, seed, task="antmaze-umaze-v2", env=None)
        path = write(tmp_path / f"some{seed}", [1, 0, 0, 0, 0, 0, 0, 0], seed, "iql")
        rows = [json.loads(line) for line in (path / "episodes.jsonl").read_text().splitlines()]
        write_rows(path, episodes=[row | {"success": row["success"] or None} for row in rows])
    own, maze = compare([tmp_path]).comparisons
    every, none, few = own.entries
    reach = wilson(0, 8).high / 2**0.5
    assert none.interval == pytest.approx((0.0, 100 * reach))
    assert every.interval == pytest.approx((100 - 100 * reach, 100.0))
    assert none.against is not None
    assert -100 == none.against.low < none.against.high < -60
    assert few.interval == percent(success_rate([[1] + [0] * 7] * 2))
    assert (few.mean, few.against and few.against.n) == (12.5, 16)
    assert maze.example.unit == "normalised score"
    assert maze.entries[0].interval == none.interval


def test_episodes_with_other_starts_are_not_paired(tmp_path):
    write(tmp_path / "a", [0, 1], seed=1)
    write(tmp_path / "b", [1, 1], seed=1, algo="fql", starts=7)
    assert compare([tmp_path]).comparisons[0].entries[1].against is None


@pytest.mark.parametrize(
    "other", [{"sha256": "cd" * 32}, {"env": "Other-v0"}, {"successes": [1, 0, 1]}, {"success_timing": "post"}]
)
def test_other_data_environments_and_evaluations_are_not_mixed(tmp_path, other):
    write(tmp_path / "a", [0, 1])
    write(tmp_path / "b", **{"successes": [1, 1], "algo": "fql", **other})
    compared = compare([tmp_path])
    assert [[entry.name for entry in each.entries] for each in compared.comparisons] == [["bc"], ["fql"]]
    assert title(compared.comparisons[0]) != title(compared.comparisons[1])
    json.dumps(to_json(compared), allow_nan=False)


def test_runs_that_cannot_be_compared_are_named(cli, tmp_path):
    good = write(tmp_path / "good", [0, 1])
    copy = write(tmp_path / "great", [0, 1])
    running = write(tmp_path / "running", [0, 1], state="running")
    bare = write(tmp_path / "bare", [0, 1], seed=1)
    (bare / "eval.jsonl").write_text("")
    damaged = write(tmp_path / "damaged", [0, 1], seed=2)
    (damaged / "config.json").write_text((damaged / "config.json").read_text().replace('"seed": 2', '"seed": 3'))
    torn = write(tmp_path / "torn", [0, 1], seed=4)
    (torn / "environment.json").write_text("{}")
    (tmp_path / "nothing").mkdir()
    paths = (good, copy, running, bare, damaged, torn, tmp_path / "nothing", tmp_path / "none", good)
    code, out, err = cli("compare", *paths)
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()[1:3]] == [
        ["method", "success", "in"],
        ["bc", "50.0", "[40.0,"],
    ]
    for path, words in (
        (copy, f"has the configuration and the seed of {good}"),
        (running, "is not finished: running, step 20"),
        (bare, "has no evaluation with a score"),
        (damaged, "was changed or damaged"),
        (torn, "is damaged"),
        (tmp_path / "nothing", "holds no run"),
        (tmp_path / "none", "there is no such directory"),
    ):
        assert any(str(path) in line and words in line for line in err.splitlines()), (words, err)
    check_error(cli("compare", running, bare), 1, "no finished run with an evaluation", "is not finished: running")
    check_error(cli("compare", good, "--baseline", "bcc"), 2, "did you mean bc?")


def test_json_and_curves(cli, runs, tmp_path):
    code, out, err = cli("compare", runs, "--json", "--curves", tmp_path / "curves.png")
    assert code == 0
    (found,) = json.loads(out)["comparisons"]
    assert found["methods"][2]["against"].keys() == {"mean", "low", "high", "n", "pairs"}
    assert [run["seed"] for run in found["methods"][0]["runs"]] == [0, 1]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path / "curves.png") in err


def test_curves_of_an_online_suite(tmp_path):
    """The same position means the same number of online steps, also for a method without an offline phase."""
    scores = {"fql": [(0, 10, 20, 30, 5, 15, 40, 80), (0, 20, 20, 50, 15, 25, 60, 90)], "rlpd": [(0, 5, 10, 20)] * 2}
    for job in small_jobs("paper-online", tmp_path, "fql", "rlpd", patterns=("scene*",), seeds=(0, 1)):
        write_run(job, scores[job.variant.label][job.seed])
    (comparison,) = compare([tmp_path]).comparisons
    chart = curves(comparison)
    fql, rlpd = chart.lines
    assert (fql.name, list(fql.x)) == ("fql", list(range(2_500, 20_001, 2_500)))
    assert list(fql.y) == [0, 15, 20, 40, 10, 20, 50, 85]
    assert (rlpd.name, list(rlpd.x)) == ("rlpd (no offline phase)", [12_500, 15_000, 17_500, 20_000])
    assert (chart.marks, chart.limits) == ([("online", 10_000)], (-3.0, 103.0))


def test_an_axis_has_the_unit_of_its_task(tmp_path):
    """Only success has the axis of a percentage."""
    names = {"robot": "success in percent", "walker": "return"}
    for job in own_jobs(tmp_path, *names):
        write_run(job, (40,), unit=names[job.task], data=f"npz:{job.task}.npz", sha256=names[job.task][:2] * 32)
    robot, walker = map(curves, compare([tmp_path]).comparisons)
    assert (robot.y_label, robot.limits) == ("success in percent", (-3.0, 103.0))
    assert (walker.y_label, walker.limits) == ("return", None)
