"""D4RL's antmaze, ids and scores, against what D4RL publishes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import pytest

from fidec.cli.evaluate import print_comparison
from fidec.envs.factory import factory_of, find_task, make
from fidec.envs.families import d4rl
from fidec.envs.families.d4rl import MAPS, cell_xy, find_cell
from fidec.errors import ConfigError
from fidec.extras import quiet

NOOP = np.zeros(8, np.float32)


@pytest.fixture(scope="module")
def umaze():
    env = make("antmaze-umaze-v2")
    yield env
    env.close()


# D4RL's kwargs: 4.0 * (column - 1), 4.0 * (row - 1) of the cell marked G.
@pytest.mark.parametrize(("maze", "goal"), [("umaze", (0, 8)), ("medium", (20, 20)), ("large", (32, 24))])
def test_start_and_goal_lie_where_d4rl_puts_them(maze, goal):
    cells = "".join(MAPS[maze])
    assert (cells.count("S"), cells.count("G"), set(cells) - set("SG# ")) == (1, 1, set())
    assert find_cell(maze, "S") == (1, 1)
    assert tuple(cell_xy(maze, (1, 1))) == (0, 0)
    assert tuple(cell_xy(maze, find_cell(maze, "G"))) == goal


@pytest.mark.parametrize("maze", ["medium", "large"])
def test_walls_and_frame_are_ogbenchs(maze):
    """So that a position in D4RL's data, in OGBench's and in this environment is the same place."""
    import ogbench  # noqa: F401 - registers its environments

    with quiet():
        theirs: Any = gymnasium.make(f"antmaze-{maze}-v0", disable_env_checker=True).unwrapped
    ours: Any = make(f"antmaze-{maze}-play-v2").unwrapped
    walls = [
        [g for g in map(m.geom, range(m.ngeom)) if g.name.startswith("block_")] for m in (ours.model, theirs.model)
    ]
    assert [w.name for w in walls[0]] == [w.name for w in walls[1]]
    for mine, other in zip(*walls, strict=True):
        for key in ("pos", "size", "friction", "contype", "conaffinity", "solref", "margin"):
            np.testing.assert_array_equal(getattr(mine, key), getattr(other, key))
    assert ours.dt == pytest.approx(0.1)
    np.testing.assert_array_equal(ours.model.actuator_gear[:, 0], 30)


def test_starts_and_goals_are_drawn_by_d4rls_rule(umaze):
    drawn = [(umaze.reset(seed=seed)[0], umaze.get_wrapper_attr("goal")) for seed in range(200)]
    observations, goals = (np.stack(column) for column in zip(*drawn, strict=True))
    assert observations.shape == (200, 29)
    assert np.abs(observations[:, :2]).max() <= 0.1  # the origin, and gym's noise of 0.1 on every joint
    assert np.abs(observations[:, :2]).max() > 0.09
    assert np.abs(observations[:, 2] - 0.75).max() <= 0.1
    assert np.std(observations[:, 15:]) == pytest.approx(0.1, rel=0.05)
    offsets = goals - (0, 8)  # U(0, 1) + U(0, 0.5): mean 0.75, variance (1 + 1/4) / 12
    assert offsets.min() > 0
    assert 1.3 < offsets.max() < 1.5
    np.testing.assert_allclose(offsets.mean(axis=0), 0.75, atol=0.07)
    np.testing.assert_allclose(offsets.var(axis=0), 1.25 / 12, rtol=0.25)


@pytest.mark.parametrize(("distance", "reached"), [(0.45, True), (0.6, False)])
def test_the_goal_pays_one_and_ends_the_episode(umaze, distance, reached):
    umaze.reset(seed=0)
    base = umaze.unwrapped
    base.data.qvel[:] = 0
    base.set_xy(umaze.get_wrapper_attr("goal") - (distance, 0))
    _, reward, terminated, truncated, info = umaze.step(NOOP)
    assert (reward, terminated, truncated, info["success"]) == (float(reached), reached, False, float(reached))


def test_an_episode_is_cut_at_700_steps(umaze):
    umaze.reset(seed=0)
    steps = [umaze.step(NOOP)[1:4] for _ in range(700)]
    assert steps == [(0.0, False, False)] * 699 + [(0.0, False, True)]


def test_a_seed_determines_the_episode_and_no_global_generator_is_used(umaze):
    def play(seed):
        rng, seen = np.random.default_rng(1), [umaze.reset(seed=seed)[0]]
        seen += [umaze.step(rng.uniform(-1, 1, 8))[0] for _ in range(10)]
        return np.stack([*seen, np.pad(umaze.get_wrapper_attr("goal"), (0, 27))])

    np.random.seed(0)
    before = str(np.random.get_state())
    first, other, again = play(3), play(4), play(3)
    assert str(np.random.get_state()) == before
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], other[0])


def test_ids_prefix_note_and_horizons():
    assert len(d4rl.tasks()) == 18
    info = find_task("d4rl:antmaze-large-diverse-v2")
    assert info == find_task("antmaze-large-diverse-v2")
    assert (info.family, info.env, info.data, info.horizon) == ("d4rl", "antmaze-large", "diverse", 1000)
    assert info.dataset == info.id
    assert info.note == f"D4RL rules restored on MuJoCo {version('mujoco')}; not the original simulator"
    horizons = [find_task(f"{name}-human-v1").horizon for name in ("pen", "door", "hammer", "relocate")]
    assert horizons == [100, 200, 200, 200]
    with pytest.raises(ConfigError, match="did you mean door-human-v1"):
        find_task("door-humans-v1")
    for wrong in ("ogbench:door-human-v1", "d4rl:cube-single-play-singletask-v0", "gym:door-human-v1"):
        with pytest.raises(ConfigError, match=f"no task '{wrong}'"):
            find_task(wrong)


def test_scores_are_d4rls():
    def score(task, mean):
        factory = factory_of(task)
        assert factory is not None
        return factory.score({"success": 0.25, "return": mean})

    for info in d4rl.tasks():
        low, high = d4rl.REFERENCE[info.env.partition("-")[0]]
        scores = [score(f"d4rl:{info.id}", mean) for mean in (low, (low + high) / 2, high)]
        assert scores == pytest.approx([0, 50, 100])
    assert score("pen-human-v1", 3076.8331017826877) == pytest.approx(100)
    assert score("door-human-v1", 0.0) == pytest.approx(1.924115)
    assert score("door-human-v1", None) is None


def test_eval_prints_the_note_and_the_normalised_score(capsys):
    summary = dict.fromkeys(("success", "success_low", "success_high", "return_low", "return_high"), 0.5)
    summary |= {"return": 1412.0, "score": 50.0, "length": 200, "n": 4, "n_failed": 0}
    result = {"environment": "door-human-v1", "step": 10, "seed": 0, "refined": summary}
    print_comparison(result | {"note": find_task("door-human-v1").note})
    printed = capsys.readouterr().out
    assert "not the original simulator" in printed
    assert printed.splitlines()[-1].split()[-1] == "50.0"
