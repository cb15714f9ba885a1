"""The command and the sources of a run's options."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from fidec.cli.train import read_args
from fidec.train.config import RunConfig
from fidec.train.provenance import command_of, options_of
from fidec.train.resolve import resolve

CUBE, DOOR = "cube-single-play-singletask-task2-v0", "door-expert-v1"
COMMANDS = [
    f"--task {CUBE}",
    f"--task {CUBE} --algo rebrac --preset released --seed 3 --data-dir some/where",
    f"--task {CUBE} --preset nats --steps 500 --algo.hidden 16 16 --n-step 3",
    f"--task {CUBE} --algo.constraint precision --algo.budget 0.4 --flow-updates 10 --eval-interval 0",
    f"--task {CUBE} --preset released --algo.constraint stein --algo.t-eps auto",
    f"--task {DOOR} --algo rebrac --chunk 5 --batch-size 32 --candidates 1",
    f"--task {CUBE} --online-steps 100 --online.envs 2 --algo.train-flow False",
    f"--task {CUBE} --algo rlpd --online-steps 100 --online.updates 3",
    '--data "npz:it\'s here.npz" --env Pendulum-v1 --action-low -2 --action-high 2 --normalize-observations False',
    "--data npz:own.npz --algo bc --preset recommended --flow-updates 0",
    f"--task {CUBE} --flow a/run --reward-scale 0.5 --value-start data --memory-limit 0.5",
]


def read(words: list[str]) -> RunConfig:
    return resolve(read_args(words, "fidec train")[0])


@pytest.mark.parametrize("words", COMMANDS)
def test_the_command_gives_the_configuration_again(words: str):
    config = read(shlex.split(words))
    command = command_of(config)
    assert command is not None
    again = read(shlex.split(command)[2:])
    assert dataclasses.replace(again, out=config.out) == config
    # What is not given is not repeated.
    assert len(shlex.split(command)) <= len(words.split()) + 6


def test_a_run_on_arrays_of_python_has_no_command():
    assert command_of(dataclasses.replace(resolve(RunConfig(env="Pendulum-v1")), data=None)) is None


def test_sources_of_options(tmp_path: Path):
    config = read(shlex.split(f"--task {CUBE} --preset nats --algo.hidden 16 16 --seed 1"))
    source = {option.name: option.source for option in options_of(config)}
    assert {name for name, text in source.items() if text == "given"} == {
        "task",
        "algo",
        "preset",
        "seed",
        "algo.hidden",
    }
    assert source["flow-updates"] == source["algo.constraint"] == "preset nats"
    assert source["steps"] == "OGBench state protocol"
    assert source["batch-size"] == "default"
    plain = {option.name: option.source for option in options_of(read(["--task", CUBE]))}
    assert plain["algo.budget"] == "FiDec paper's table of hyper-parameters"
    other = {each.name: each for each in options_of(read(["--preset", "nats", "--algo.constraint", "isotropic"]))}
    assert (other["algo.budget"].value, other["algo.budget"].source) == (None, "default")  # 0.2 nats are the preset's
    assert other["algo.multiplier"].source == "preset nats"
