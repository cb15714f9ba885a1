"""The configuration of the online phase: its defaults are the published protocol."""

from __future__ import annotations

import dataclasses

import pytest

from fidec import algos, tasks
from fidec.errors import ConfigError
from fidec.tasks.paper import ONLINE_METHODS
from fidec.train.buffer import check_buffer
from fidec.train.config import OnlineConfig, RunConfig
from fidec.train.resolve import resolve
from fidec.train.stored import config_of

TASK = "cube-double-play-singletask-v0"


def online(algo: str, task: str = TASK, **fields) -> RunConfig:
    return resolve(RunConfig(task=task, algo=algo, online_steps=fields.pop("online_steps", 1000), **fields))


@pytest.mark.parametrize("algo", ONLINE_METHODS)
def test_the_published_protocol_is_the_default(algo):
    config = online(algo)
    assert config.steps == (0 if algo == "rlpd" else 1_000_000)
    assert config.online.sampling == ("balanced" if algo in ("rlpd", "calql") else "uniform")
    assert config.online.collect == ("episode" if algo == "calql" else "step")
    assert not config.online.freeze_flow
    left = dict.fromkeys(("sampling", "collect", "reward_shift", "freeze_flow"))
    assert dataclasses.replace(config.online, **left) == OnlineConfig()


def test_every_method_is_trained_online_or_has_a_reason():
    for algo in algos.names():
        if reason := algos.get(algo).offline_only:
            assert algo not in ONLINE_METHODS
            with pytest.raises(ConfigError, match=f"{algo} is not trained online: {reason}"):
                online(algo)
        else:
            assert online(algo).online.sampling


def test_the_published_capacity():
    """Two million rows; one more than the data where that is larger, so that the second new row overwrites."""
    uniform, balanced = online("fql").online, online("rlpd").online
    assert [check_buffer(uniform, size, 256) for size in (1_000_000, 1_999_999, 2_000_000, 3_000_000)] == [
        2_000_000,
        2_000_000,
        2_000_001,
        3_000_001,
    ]
    assert check_buffer(balanced, 3_000_000, 256) == 2_000_000
    assert check_buffer(dataclasses.replace(uniform, capacity=500), 500, 256) == 500
    with pytest.raises(ConfigError, match="499 is less than the 500 offline transitions"):
        check_buffer(dataclasses.replace(uniform, capacity=499), 500, 256)
    with pytest.raises(ConfigError, match=r"batch of 8 rows cannot be shared .* at online.fraction 0.01"):
        check_buffer(dataclasses.replace(balanced, fraction=0.01), 500, 8)


def test_options_are_those_of_the_online_table():
    """FQL's alpha differs between offline and online on five tasks."""
    changed = {}
    for task in (row.id for row in tasks.TASKS if row.setting == "online"):
        offline, fine_tuned = resolve(RunConfig(task=task, algo="fql")), online("fql", task)
        if offline.options != fine_tuned.options:
            changed[task] = (offline.options.alpha, fine_tuned.options.alpha)
    assert changed == {
        "humanoidmaze-medium-navigate-singletask-v0": (30.0, 100.0),
        "antsoccer-arena-navigate-singletask-v0": (10.0, 30.0),
        "pen-cloned-v1": (10000.0, 1000.0),
        "door-cloned-v1": (30000.0, 1000.0),
        "hammer-cloned-v1": (10000.0, 1000.0),
    }


def test_a_configuration_is_read_back_also_from_a_file_without_online_options():
    config = online("calql", online=OnlineConfig(updates=3, capacity=500))
    assert config_of(config.to_json()) == config
    older = resolve(RunConfig(task=TASK, algo="fql")).to_json()
    del older["online"], older["online_steps"]
    assert config_of(older).online_steps == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"updates": 0}, "updates must be at least 1"),
        ({"envs": 1.5}, "envs must be a whole number"),
        ({"envs": 4, "capacity": 7}, "capacity must be at least 8"),
        ({"fraction": 1.0}, "fraction must lie strictly between 0 and 1"),
        ({"max_failures": -1}, "max_failures must be at least 0"),
        ({"collect": "episode", "overlap": True}, "no overlap"),
        ({"envs": 2, "overlap": True}, "overlap needs one environment"),
    ],
)
def test_invalid_values_are_errors_that_name_the_option(fields, words):
    with pytest.raises(ConfigError, match=words):
        OnlineConfig(**fields)


def test_a_run_needs_a_step():
    with pytest.raises(ConfigError, match="steps must be at least 1"):
        RunConfig(task=TASK, steps=0)
    assert RunConfig(task=TASK, steps=0, online_steps=5).total == 5
