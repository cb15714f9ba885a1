"""Exploration's promises: whole episodes by index, exact resume, failures that lose nothing, steps in flight."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from fidec.envs.evaluation import episode_seed
from fidec.envs.exploration import Failure, Lanes, Transition, exploration_seed
from fidec.envs.factory import make
from fidec.envs.wrappers import stacked
from fidec.errors import ConfigError, EnvError, NonFiniteError
from helpers.lane_envs import Counter, Film, Handshake, length

SEED = 5


@pytest.fixture(scope="module")
def one():
    with Lanes(Counter, 1) as lanes:
        yield lanes


@pytest.fixture(scope="module")
def three():
    with Lanes(Counter, 3) as lanes:
        yield lanes


def policy(lanes: Lanes) -> np.ndarray:
    """A function of the episode, the step and what is seen."""
    draws = [
        np.random.default_rng([e, s]).uniform(-1, 1, lanes.action_dim)
        for e, s in zip(lanes.episodes, lanes.steps, strict=True)
    ]
    return np.array(draws, np.float32) * np.cos(
        lanes.observations.reshape(lanes.num_envs, -1)[:, -1:].astype(np.float32)
    )


def explore(lanes: Lanes, rounds: int) -> list[Transition]:
    return [transition for _ in range(rounds) for transition in lanes.step(policy(lanes))]


def by_episode(transitions: list[Transition]) -> dict[int, list[Transition]]:
    found: dict[int, list[Transition]] = {}
    for transition in transitions:
        found.setdefault(transition.episode, []).append(transition)
    return found


def content(transitions: list[Transition]) -> list[tuple]:
    """All but the lane, in bytes."""
    return [tuple(x.tobytes() if isinstance(x, np.ndarray) else x for x in t[1:]) for t in transitions]


def recorded(transitions: list[Transition]):
    """(actions_of, observations_of) as a replay buffer would give them."""
    episodes = by_episode(transitions)
    return (
        lambda e: np.array([t.action for t in episodes.get(e, [])]),
        lambda e: np.array([t.next_observation for t in episodes.get(e, [])]),
    )


@pytest.mark.parametrize("lanes", ["one", "three"])
def test_transitions_are_those_of_whole_episodes(lanes, request):
    lanes = request.getfixturevalue(lanes)
    lanes.begin(SEED, next_episode=10)
    assert lanes.episodes.tolist() == [*range(10, 10 + lanes.num_envs)]
    transitions = explore(lanes, 30)
    assert len(transitions) == 30 * lanes.num_envs
    assert [t.lane for t in transitions] == [*range(lanes.num_envs)] * 30
    episodes, ends = by_episode(transitions), set()
    assert sorted(episodes) == [*range(10, 10 + len(episodes))]
    for index, rows in episodes.items():
        seed = exploration_seed(SEED, index)
        assert [t.step for t in rows] == [*range(len(rows))]
        for t in rows:  # the observations before and after are of this episode and of neighbouring steps
            assert t.observation[:2].tolist() == [seed % 1000, t.step]
            assert t.next_observation[:2].tolist() == [seed % 1000, t.step + 1]
            assert t.observation.dtype == t.next_observation.dtype == t.action.dtype == np.float32
            assert t.success == (t.step + 1) / 10
            last = t.step + 1 == length(seed)
            assert (t.terminated, t.truncated) == (last and length(seed) % 2 == 0, last and length(seed) % 2 == 1)
            ends.add((t.terminated, t.truncated))
        for before, after in pairwise(rows):
            assert np.array_equal(before.next_observation, after.observation)
        assert len(rows) == length(seed) or index in lanes.episodes
        np.testing.assert_allclose([t.reward for t in rows], np.cumsum([t.action.sum() for t in rows]), atol=1e-5)
    assert ends == {(False, False), (True, False), (False, True)}


def test_an_episode_does_not_depend_on_the_number_of_lanes(one, three):
    one.begin(SEED)
    three.begin(SEED)
    many, single = by_episode(explore(three, 12)), by_episode(explore(one, 36))
    common = sorted(many.keys() & single.keys())
    assert len(common) > 4
    for index in common:
        steps = min(len(many[index]), len(single[index]))
        assert content(many[index][:steps]) == content(single[index][:steps])
    three.begin(SEED + 1)
    assert content(explore(three, 1)) != content(many[0][:1] + many[1][:1] + many[2][:1])


def test_seeds_are_not_those_of_evaluation():
    indices = range(2000)
    ours = {exploration_seed(0, k) for k in indices}
    assert len(ours) == len(indices)
    same, fresh = ({episode_seed(0, k, step) for k in indices} for step in (None, 0))
    assert not ours & same
    assert not ours & fresh
    assert not fresh & same
    assert not fresh & {episode_seed(0, k, 1) for k in indices}
    assert exploration_seed(3, 4) == np.random.SeedSequence([3, 4, 1]).generate_state(1)[0]


@pytest.mark.parametrize(("lanes", "rounds"), [("one", 3), ("one", 10), ("three", 7), ("three", 0)])
def test_restore_equals_the_uninterrupted_continuation(lanes, rounds, request):
    lanes = request.getfixturevalue(lanes)
    lanes.begin(SEED)
    before = explore(lanes, rounds)
    position = json.loads(json.dumps(lanes.position))
    seen, continuation, final = lanes.observations, explore(lanes, 20), lanes.position
    lanes.begin(SEED + 1)  # the processes have been elsewhere
    explore(lanes, 2)
    assert lanes.restore(SEED, position, *recorded(before)) == []
    assert lanes.position == position
    assert np.array_equal(lanes.observations, seen)
    assert content(explore(lanes, 20)) == content(continuation)
    assert lanes.position == final


def test_stacked_images_are_compared_by_their_newest_frame():
    with Lanes(lambda: stacked(Film(), 3), 1) as lanes:
        lanes.begin(SEED)
        before = explore(lanes, 4)
        position, seen = lanes.position, lanes.observations
        assert seen.shape == (1, 4, 4, 3)
        assert seen.dtype == np.uint8
        actions_of, observations_of = recorded(before)
        newest = lambda e: observations_of(e)[..., -1:]  # noqa: E731
        assert lanes.restore(SEED, position, actions_of, newest) == []
        assert np.array_equal(lanes.observations, seen)
        assert lanes.restore(SEED, position, actions_of, lambda e: 255 - newest(e)) == [0]
        assert lanes.position == {"next_episode": 2, "lanes": [{"episode": 1, "step": 0}], "failures": 0}


def test_a_simulator_that_does_not_repeat_itself_goes_to_the_next_episode():
    with Lanes(partial(Counter, None, True), 1) as lanes:
        lanes.begin(SEED)
        before = explore(lanes, 2)
        assert lanes.restore(SEED, lanes.position, *recorded(before)) == [0]
        assert lanes.position == {"next_episode": 2, "lanes": [{"episode": 1, "step": 0}], "failures": 0}
        assert [(t.episode, t.step) for t in explore(lanes, 2)] == [(1, 0), (1, 1)]


def test_only_the_lanes_that_went_otherwise_are_lost(three):
    three.begin(SEED)
    before = explore(three, 3)
    position, continuation = three.position, explore(three, 1)
    actions_of, observations_of = recorded(before)

    def altered(episode):
        """One bit of the last observation of episode 1 is another."""
        observations = observations_of(episode)
        if episode == 1:
            observations[-1, -1] = np.nextafter(observations[-1, -1], np.float32(9))
        return observations

    assert three.restore(SEED, position, actions_of, altered) == [1]
    assert three.episodes.tolist() == [0, position["next_episode"], 2]
    assert three.steps.tolist() == [3, 0, 3]
    after = explore(three, 1)
    assert content([after[0], after[2]]) == content([continuation[0], continuation[2]])
    ended = {**position, "lanes": [{"episode": 0, "step": length(exploration_seed(SEED, 0))}, *position["lanes"][1:]]}
    whole = recorded(before + [t for t in explore_episode_0(three) if t.step >= 3])
    assert three.restore(SEED, ended, *whole) == [0]  # it ended where the record says that it goes on
    with pytest.raises(EnvError, match="episode 0 has had 3 steps, but 0 actions and 0 observations"):
        three.restore(SEED, position, *recorded([]))
    with pytest.raises(ConfigError, match="1 lanes, but there are 3"):
        three.restore(SEED, {**position, "lanes": position["lanes"][:1]}, *recorded(before))


def explore_episode_0(lanes: Lanes) -> list[Transition]:
    lanes.begin(SEED)
    return by_episode(explore(lanes, 8))[0]


FAULTS = {
    "exit": ("crashed", "crashed after 2 steps: process ended with exit code 7"),
    "sleep": ("hung", "hung after 2 steps: no answer for 1.5 s"),
    "nan": ("invalid", r"returned an invalid value after 2 steps: observation is nan at index \(0,\)"),
    "reset": ("crashed", "crashed after 0 steps: ValueError: reset went wrong"),
}


def test_failures_are_named_and_recovered_from_without_losing_a_step(one):
    """One lane: the episodes between the failing ones are whole, and equal those of an environment without faults."""
    faults = dict(enumerate(FAULTS, start=1))
    seeds = {exploration_seed(SEED, index): fault for index, fault in faults.items()}
    transitions, failures = [], []
    with Lanes(partial(Counter, seeds), 1, step_timeout=1.5) as lanes:
        lanes.begin(SEED)
        while lanes.episodes[0] <= len(faults):
            position = lanes.position
            try:
                transitions += lanes.step(policy(lanes))
            except Failure as failure:
                assert lanes.position == position  # a run that stops here saves what it has
                with pytest.raises(EnvError, match="send comes after"):
                    lanes.send(np.zeros((1, 2)))
                failures.append(failure)
                transitions += recover(lanes, failures)
        assert lanes.position == {
            "next_episode": len(faults) + 2,
            "lanes": [{"episode": len(faults) + 1, "step": 0}],
            "failures": len(faults),
        }
    assert [f.episode for f in failures] == list(faults)
    for failure, (kind, message) in zip(failures, FAULTS.values(), strict=True):
        seed = exploration_seed(SEED, failure.episode)
        assert (failure.lane, failure.seed, failure.kind) == (0, seed, kind)
        with pytest.raises(
            Failure, match=rf"^the environment of episode {failure.episode} \(seed {seed}, lane 0\) {message}"
        ):
            raise failure
    one.begin(SEED)
    good = by_episode(explore(one, 60))
    for index, rows in by_episode(transitions).items():
        assert content(rows) == content(good[index][: len(rows)])
        assert len(rows) == (2 if index in faults else length(exploration_seed(SEED, index)))
    assert sorted(by_episode(transitions)) == [i for i in range(len(faults) + 1) if faults.get(i) != "reset"]


def recover(lanes: Lanes, failures: list[Failure]) -> list[Transition]:
    while True:
        try:
            return lanes.recover()
        except Failure as failure:
            failures.append(failure)


def test_the_other_lanes_keep_the_round_in_which_one_fails(three):
    """Episodes 1 and 2 fail in the same round; then the reset of the episode that follows episode 0 does."""
    three.begin(SEED)
    good = by_episode(explore(three, 20))
    end = length(exploration_seed(SEED, 0))
    faults = {
        exploration_seed(SEED, 1): "raise",
        exploration_seed(SEED, 2): "nan",
        exploration_seed(SEED, 5): "reset",
    }
    with Lanes(partial(Counter, faults), 3, step_timeout=20) as lanes:
        lanes.begin(SEED)
        transitions = explore(lanes, 2)
        failures = []
        with pytest.raises(Failure) as first:
            lanes.step(policy(lanes))
        kept = recover(lanes, failures)
        assert [(f.lane, f.episode, f.step, f.kind) for f in (first.value, *failures)] == [
            (1, 1, 2, "crashed"),
            (2, 2, 2, "invalid"),
        ]
        assert [(t.lane, t.episode, t.step) for t in kept] == [(0, 0, 2)]
        assert lanes.position == {
            "next_episode": 5,
            "lanes": [{"episode": 0, "step": 3}, {"episode": 3, "step": 0}, {"episode": 4, "step": 0}],
            "failures": 2,
        }
        transitions += kept + explore(lanes, end - 4)
        with pytest.raises(Failure, match=r"episode 5 .*after 0 steps") as last:
            lanes.step(policy(lanes))
        assert (last.value.lane, last.value.step) == (0, 0)
        kept = lanes.recover()
        assert [t.lane for t in kept] == [0, 1, 2]
        assert kept[0].terminated or kept[0].truncated
        assert lanes.episodes.tolist() == [6, 3, 4]
        transitions += kept + explore(lanes, 2)
    for index, rows in by_episode(transitions).items():
        assert content(rows) == content(good[index][: len(rows)])
    assert len(by_episode(transitions)[0]) == end


def test_a_process_that_dies_is_replaced_and_signals_are_the_parents():
    with Lanes(Counter, 1) as lanes:
        lanes.begin(SEED)
        pid = lanes.pids[0]
        for name in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, name)
        explore(lanes, 1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Failure, match="crashed after 1 step: process ended by SIGKILL"):
            explore(lanes, 1)
        assert lanes.recover() == []
        explore(lanes, 1)
        pids = [pid, *lanes.pids]
        lanes.send(policy(lanes))  # closed while a step is in flight
    for pid in pids:
        with pytest.raises(ProcessLookupError):  # not even a zombie
            os.kill(pid, 0)
    for call in (lambda: lanes.begin(0), lambda: lanes.send(np.zeros((1, 2))), lanes.recover):
        with pytest.raises(EnvError, match="this Lanes is closed"):
            call()


def test_a_step_runs_while_the_caller_works(tmp_path):
    """The step ends only after a file that the caller writes between send and receive."""
    with Lanes(partial(Handshake, tmp_path), 1, step_timeout=20) as lanes:
        with pytest.raises(EnvError, match="no position yet"):
            _ = lanes.position
        lanes.begin(SEED)
        before = lanes.position
        lanes.send(np.zeros((1, 1)))
        deadline = time.monotonic() + 20
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline, "the step did not start"
            time.sleep(0.01)
        assert lanes.position == before
        assert lanes.observations == 0
        with pytest.raises(EnvError, match="send comes after"):
            lanes.send(np.zeros((1, 1)))
        (tmp_path / "go").touch()
        assert lanes.receive()[0].next_observation == 1
        assert lanes.position["lanes"] == [{"episode": 0, "step": 1}]


def test_misuse_is_named(one):
    one.begin(SEED)
    explore(one, 1)
    with pytest.raises(NonFiniteError, match="episode 0, step 1"):
        one.send(np.full((1, 2), np.nan))
    with pytest.raises(EnvError, match=r"\(1, 3\).*\(1, 2\)"):
        one.send(np.zeros((1, 3)))
    with pytest.raises(EnvError, match="receive comes after send"):
        one.receive()
    with pytest.raises(EnvError, match="recover comes after a Failure"):
        one.recover()
    with pytest.raises(ConfigError, match="seed = -1"):
        one.begin(-1)
    one.begin(SEED)
    actions = np.full((1, 2), 0.5, np.float32)
    one.send(actions)
    actions[:] = 0  # the transition has what was sent
    assert one.receive()[0].action.tolist() == [0.5, 0.5]


TASKS = [
    "pointmaze-medium-navigate-singletask-task1-v0",
    *(
        pytest.param(task, marks=pytest.mark.slow)
        for task in (
            "cube-single-play-singletask-task2-v0",
            "antmaze-medium-navigate-singletask-task1-v0",
            "door-cloned-v1",
        )
    ),
]


@pytest.mark.parametrize("task", TASKS)
def test_an_episode_is_the_same_in_a_used_and_in_a_fresh_process(task):
    """What exact resume stands on: after a restart, the simulator has forgotten nothing that matters."""

    def episode(lanes: Lanes) -> list[Transition]:
        lanes.begin(SEED, 2)
        return explore(lanes, 30)

    with Lanes(partial(make, task), 1) as used, Lanes(partial(make, task), 1) as fresh:
        used.begin(SEED)
        explore(used, 40)
        used.begin(SEED, 1)
        explore(used, 40)
        expected, position = episode(used), used.position
        continuation = explore(used, 10)
        assert content(episode(fresh)) == content(expected)
        assert fresh.restore(SEED, position, *recorded(expected)) == []
        assert content(explore(fresh, 10)) == content(continuation)
