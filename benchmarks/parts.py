"""The parts of FiDec's default, one by one: `python -m benchmarks.parts [--tasks PATTERN ...] [--arms NAME ...]`.

Trains variants of one policy on the design tasks of docs/trust.md, on one behaviour flow for each task and seed.
Plays each in several ways on the same episodes, and adds the score of every episode to a file. It goes on wherever
rows are missing in that file. `--show` prints the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from benchmarks.table import alone_in, cpu_seconds, fidec, mean, read_rows, say, versions, write_hand, write_rows
from fidec.cli.parsing import parse, print_table
from fidec.envs.factory import factory_of
from fidec.errors import ConfigError, DataError, RunError
from fidec.register import unknown

FILE = Path(__file__).with_suffix(".jsonl")
EPISODES = 50
SETTINGS = ("--algo.hidden", "128", "128", "128", "--algo.learning-rate", "0.001", "--eval-interval", "0")


class Task(NamedTuple):
    """A task: one of a benchmark by its id, or own data with a Gymnasium environment."""

    data: str  # a data set that is made, a file in the layout of D4RL, or an operator of this file
    env: str = ""
    scale: tuple[float, float] | None = None  # the returns that count as 0 and as 100
    updates: int = 15_000


TASKS = {
    "cube-single-play-singletask-task2-v0": Task("200000"),
    "door-expert-v1": Task("hand"),
    "pointmaze-medium-navigate-singletask-task1-v0": Task("100000"),
    "pendulum": Task("pendulum", "Pendulum-v1", (-910.0, -150.0)),
    "reacher": Task("reacher", "Reacher-v5", (-11.9, -4.0)),
    "puzzle-3x3-play-singletask-task2-v0": Task("200000", updates=100_000),
    "scene-play-singletask-task2-v0": Task("200000", updates=100_000),
    "pen-expert-v1": Task("hand"),
    "pointmaze-medium-navigate-singletask-task3-v0": Task("100000"),
    "cube-single-play-singletask-task1-v0": Task("100000"),
    "door-human-v1": Task("hand"),
}


class Way(NamedTuple):
    """How a policy is played: the factor of its noise, how many candidates, the factor of the displacement."""

    noise: float = 1.0
    candidates: int = 1
    strength: float = 1.0

    def label(self) -> str:
        words = [f"noise {self.noise:g}"] * (self.noise != 1) + [f"best of {self.candidates}"] * (self.candidates > 1)
        return ", ".join((["clone"] if self.strength == 0 else []) + words) or "as trained"


WAYS = (Way(), Way(0.5, 4), Way(0.5, 8))
OTHERS = (Way(0.5), Way(0.0), Way(1.0, 4))
CLONES = (Way(strength=0), Way(0.5, strength=0), Way(0.0, strength=0))


class Arm(NamedTuple):
    """Options that an arm has besides those of the preset, and how it is played."""

    words: tuple[str, ...] = ()
    ways: tuple[Way, ...] = WAYS
    algo: tuple[str, ...] = ("--algo", "fidec", "--preset", "nats")


INFORMATION = ("--algo.constraint", "information", "--algo.t-eps", "0.95", "--algo.samples", "8")
ARMS = {
    "nats": Arm(ways=(*WAYS, *OTHERS, *CLONES)),
    "one step": Arm(("--n-step", "1")),
    "information": Arm((*INFORMATION, "--algo.proposals", "8")),
    "chunks": Arm(("--chunk", "5")),
}


@dataclass(frozen=True)
class PartsArgs:
    """Train and play variants of FiDec's default on its design tasks, or show what was measured."""

    tasks: tuple[str, ...] = ()
    """Tasks; patterns are allowed. By default all."""
    arms: tuple[str, ...] = ("nats",)
    """Variants of the training, besides `nats`, whose flow they use."""
    seeds: tuple[int, ...] = (0, 1)
    """Seeds of every arm."""
    work: Path = Path("runs/parts")
    """Directory of the data and of the runs."""
    data: Path | None = None
    """Directory of data that is made already: cube-single-play-v0.npz, for example."""
    hands: Path | None = None
    """Directory of door-expert.npz and pen-expert.npz, of which D4RL's files are made."""
    rows: Path = FILE
    """File with the scores so far, to which new ones are added."""
    show: bool = False
    """Only print the table of the file."""


def main(argv: list[str] | None = None) -> int:
    args = parse(PartsArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.parts")
    rows = read_rows(args.rows)
    if args.show:
        print_table(*table(rows))
        return 0
    for arm in args.arms:
        if arm not in ARMS:
            raise unknown("arm", arm, ARMS)
    chosen = [task for task in TASKS if not args.tasks or any(fnmatch(task, pattern) for pattern in args.tasks)]
    if not chosen:
        raise ConfigError(f"no task matches {' '.join(args.tasks)}. Known: {', '.join(TASKS)}")
    failed = []
    with alone_in(args.work.resolve()) as work:
        for seed in args.seeds:
            for task in chosen:
                source = provide(task, work, args)
                for arm in dict.fromkeys(("nats", *args.arms)):
                    try:
                        measure(task, arm, seed, source, work, args.rows)
                    except RunError as error:
                        print(f"{task} {arm} seed {seed}: {error}", file=sys.stderr)
                        failed.append(f"{task} {arm} seed {seed}")
    if failed:
        raise RunError(f"{len(failed)} failed, see above; the same command tries them again: {'; '.join(failed)}")
    return 0


def provide(task: str, work: Path, args: PartsArgs) -> tuple[str, ...]:
    """The words that name the task and its data; data that is missing is made."""
    kind, env = TASKS[task].data, TASKS[task].env
    directory = work / "data"
    directory.mkdir(parents=True, exist_ok=True)
    if env:
        path = directory / f"{task}.npz"
        if not path.exists():
            OPERATORS[kind](path)
        return ("--data", f"npz:{path}", "--env", env)
    if kind == "hand":
        path = directory / f"{task}.hdf5"
        if not path.exists():
            if args.hands is None:
                raise DataError(f"{task} needs --hands, a directory with {task[:-3]}.npz: an expert's episodes")
            write_hand(args.hands / f"{task[:-3]}.npz", path)
        return ("--task", task, "--data-dir", str(directory))
    name = task.partition("-singletask")[0] + "-v0"
    if args.data is not None and (args.data / f"{name}.npz").exists():
        return ("--task", task, "--data-dir", str(args.data))
    if not (directory / f"{name}.npz").exists():
        fidec("data", "make", name, "--rows", kind, "--workers", "1", "--data-dir", str(directory))
    return ("--task", task, "--data-dir", str(directory))


def pendulum(path: Path) -> None:
    """An operator that swings the pendulum up and balances it, and is sometimes too weak (docs/your-own-task.md)."""

    def act(observation, strength, rng, env):
        cosine, sine, speed = observation
        push = np.sign(speed) if cosine < 0.8 else -6 * sine - speed
        return 2 * strength * push + rng.normal(0, 0.5)

    record("Pendulum-v1", act, 100, path)


def reacher(path: Path) -> None:
    """An operator that pulls the finger to the target, with a strength of the day, a late look and a shaky hand."""

    def act(observation, strength, rng, env):
        first, second = env.unwrapped.data.qpos[:2]
        away = -observation[8:10]
        reach = 0.1 * np.array([-np.sin(first), np.cos(first)])
        tip = 0.11 * np.array([-np.sin(first + second), np.cos(first + second)])
        jacobian = np.stack([reach + tip, tip])
        return 5 * strength * jacobian @ away - 0.02 * observation[6:8] + rng.normal(0, 0.2, 2)

    record("Reacher-v5", act, 400, path)


OPERATORS = {"pendulum": pendulum, "reacher": reacher}


def record(env_id: str, act: Any, episodes: int, path: Path) -> None:
    env, rng = gymnasium.make(env_id), np.random.default_rng(0)
    box = env.action_space
    assert isinstance(box, gymnasium.spaces.Box)
    columns: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "truncations")}
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        strength, truncated = rng.uniform(0.3, 1.0), False
        while not truncated:
            action = np.atleast_1d(act(observation, strength, rng, env)).clip(box.low, box.high).astype(np.float32)
            following, reward, _, truncated, _ = env.step(action)
            for name, value in zip(columns, (observation, action, reward, truncated), strict=True):
                columns[name].append(value)
            observation = following
    arrays: dict[str, Any] = {name: np.asarray(rows) for name, rows in columns.items()}
    np.savez(path, **arrays, action_low=box.low, action_high=box.high)
    say(f"{path.name}: mean return {np.sum(columns['rewards']) / episodes:.1f}")


def measure(task: str, arm: str, seed: int, source: Sequence[str], work: Path, path: Path) -> None:
    """Train an arm unless its run is there, and play it in the ways that have no row."""
    rows = read_rows(path)
    have = {
        (r["noise"], r["candidates"], r["strength"])
        for r in rows
        if (r["task"], r["arm"], r["seed"]) == (task, arm, seed)
    }
    ways = [way for way in ARMS[arm].ways if tuple(way) not in have]
    directory = work / "runs" / task / arm.replace(" ", "-") / f"seed_{seed}"
    flow = work / "runs" / task / "nats" / f"seed_{seed}"
    if not ways:
        return
    seconds = None
    if not (directory / "policy").exists() or (
        json.loads((directory / "status.json").read_text())["state"] != "done"
    ):
        words = [*source, *ARMS[arm].algo, *ARMS[arm].words, *SETTINGS, "--seed", str(seed)]
        words += ["--steps", str(TASKS[task].updates), "--out", str(directory), "--overwrite"]
        shares = arm not in ("nats", "chunks")
        words += ["--flow", str(flow), "--flow-updates", "0"] if shares else []
        begin = cpu_seconds()
        fidec("train", *words)
        seconds = round(cpu_seconds() - begin, 1)
    for way in ways:
        words = ("--episodes", str(EPISODES), "--envs", "1", "--noise", str(way.noise))
        words += ("--strength", str(way.strength), "--candidates", str(way.candidates), "--json")
        (played,) = json.loads(fidec("eval", str(directory), *words))["episodes"].values()
        scores = [score(task, row) for row in sorted(played, key=lambda row: row["episode"])]
        row = {"task": task, "arm": arm, "seed": seed, **way._asdict(), "scores": scores}
        row |= {"failed": scores.count(None), "core_seconds": seconds, **versions(directory)}
        rows = [*read_rows(path), row]
        write_rows(path, rows)
        say(f"{task} {arm} seed {seed}, {way.label()}: {mean(row):.1f}")


def score(task: str, row: dict[str, Any]) -> float | None:
    """Success in percent, D4RL's normalised score, or the return between two references."""
    if row["status"] != "ok":
        return None
    if (scale := TASKS[task].scale) is not None:
        return round(100 * (row["return"] - scale[0]) / (scale[1] - scale[0]), 2)
    factory = factory_of(task)
    assert factory is not None
    value = factory.score(row)
    return None if value is None else round(value, 2)


def table(rows: Iterable[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A line for each arm and way, a column for each task: the score of every seed."""
    rows = list(rows)
    names = list(dict.fromkeys(row["task"] for row in rows))
    keys = dict.fromkeys((r["arm"], Way(r["noise"], r["candidates"], r["strength"])) for r in rows)
    lines = []
    for arm, way in keys:
        own = [r for r in rows if (r["arm"], r["noise"], r["candidates"], r["strength"]) == (arm, *way)]
        cells = [" ".join(f"{mean(r):.0f}" for r in own if r["task"] == task) for task in names]
        lines.append((arm, way.label(), *cells))
    short = [
        n.replace("-singletask-", " ").replace("-v0", "").replace("-play", "").replace("-navigate", "") for n in names
    ]
    return ("arm", "played", *short), lines


if __name__ == "__main__":
    sys.exit(main())
