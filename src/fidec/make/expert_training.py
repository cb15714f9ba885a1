"""Train the ant's expert with fidec's own soft actor-critic.

Eight ants take a block of steps with a NumPy policy; then one compiled call stores the steps and does the updates.
Everything that is drawn is a function of (seed, block), and a checkpoint holds everything else, so a training that
was interrupted continues exactly as if it had not been.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fidec import compilation, rng
from fidec.algos import rlpd
from fidec.console import Progress
from fidec.data import replay
from fidec.errors import DataError
from fidec.extras import global_numpy_seed, quiet, require
from fidec.make.episodes import locked
from fidec.make.expert import RECORD, Expert, Layers, Policy, flipped, layers_of, load_expert, save_expert, turned
from fidec.make.recipes import RECIPES, versions
from fidec.make.worlds import NavigateWorld
from fidec.store.checkpoint import Checkpoints
from fidec.store.files import remove, to_builtin
from fidec.train.loop import Keys, keys_of
from fidec.types import Batch, PRNGKey, Spec

CHECKPOINT_SECONDS = 300.0
_RECENT = 20  # episodes that the displayed return is a mean of


class Track:
    """One ant on open ground. It draws from its arguments and from NumPy's global generator: seed both."""

    def __init__(self, episode_steps: int):
        self._mujoco = require("mujoco", "ogbench", "the ant's expert")
        self._kind = self._mujoco.mjtState.mjSTATE_INTEGRATION
        ant = require("ogbench.online_locomotion.ant", "ogbench", "the ant's expert")
        wrappers = require("ogbench.online_locomotion.wrappers", "ogbench", "the ant's expert")
        with quiet():
            self._env: Any = wrappers.GymXYWrapper(ant.AntEnv())  # sets directions and rewards
        self._body = self._env.unwrapped
        self._length = episode_steps
        self.action_dim = int(self._body.action_space.shape[0])
        self.age = 0

    def reset(self, seed: int) -> np.ndarray:
        self.age = 0
        return self._env.reset(seed=seed)[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Observation, reward, whether the ant failed, whether its time is over."""
        observation, reward, failed, _, _ = self._env.step(action)
        self.age += 1
        return observation, float(reward), bool(failed), self.age >= self._length

    def get_state(self) -> np.ndarray:
        physics = np.empty(self._mujoco.mj_stateSize(self._body.model, self._kind))
        self._mujoco.mj_getState(self._body.model, self._body.data, physics, self._kind)
        return np.concatenate([[self.age], self._env.z, physics])

    def set_state(self, state: np.ndarray) -> None:
        self.age, self._env.z, physics = int(state[0]), state[1:3].copy(), state[3:]
        self._env.num_steps = self.age
        self._mujoco.mj_setState(self._body.model, self._body.data, physics, self._kind)
        self._mujoco.mj_step1(self._body.model, self._body.data)


@dataclass(frozen=True)
class Training:
    """How the expert is trained. `steps` counts environment steps.

    OGBench's ant trains for 400,000 steps. Here returns had levelled off: 181 at 165,000 steps, 187 at the end.
    """

    steps: int = 224_256
    steps_per_update: int = 2
    batch: int = 128
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    temperature: float = 0.01  # initial value
    episode_steps: int = 1000
    random_steps: int = 5000  # steps of uniform actions before the first update
    environments: int = 8
    block: int = 8  # steps in every environment between two rounds of updates
    capacity: int = 400_000  # transitions that the replay buffer keeps

    @property
    def block_steps(self) -> int:
        return self.environments * self.block

    @property
    def block_updates(self) -> int:
        return self.block_steps // self.steps_per_update


def train_expert(
    directory: Path, training: Training | None = None, *, progress: bool = True, report_episodes: int = 10
) -> Expert:
    """Train an expert into a directory, continuing from a checkpoint that is there, and record how well it walks."""
    training = training or Training()
    with locked(directory):
        if (directory / RECORD).exists():  # another process was faster
            return load_expert(directory)
        if progress:
            text = f"training the ant's expert in {directory}; if stopped, the same command continues it"
            print(text, file=sys.stderr)
        compilation.enable()
        trainer = Trainer(training, directory)
        with Progress(training.steps, trainer.steps, name="the ant's expert", enabled=progress) as bar:
            saved = time.monotonic()
            while trainer.steps < training.steps:
                trainer.advance()
                bar.advance(training.block_steps, **trainer.status())
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    trainer.save()
                    saved = time.monotonic()
        facts = {
            "made_by": "fidec (OGBench's environment and reward, fidec's SAC; not one of OGBench's experts)",
            "steps": trainer.steps,
            "training": asdict(training),
            "report": _report(trainer.policy, report_episodes),
            "versions": versions(),
        }
        save_expert(directory, trainer.layers, facts)
        remove(trainer.checkpoints.directory)
    return load_expert(directory)


def _report(policy: Policy, episodes: int) -> dict[str, Any]:
    """Goals reached in episodes of a maze. The seeds are fixed, so equal experts have equal reports."""
    maze = RECIPES["antmaze-large-navigate-v0"]
    world, goals, flips = NavigateWorld(maze, policy), [], 0
    with global_numpy_seed(0):
        for episode in range(episodes):
            flips += flipped(world.episode(0, "val", episode)["qpos"])
            goals.append(world.goals)
    return {"data": maze.name, "rows": maze.episode_rows, "goals": goals, "flipped_episodes": flips}


class Trainer:
    """A training in progress. `advance` does one block; `save` writes a checkpoint, the constructor restores it."""

    def __init__(self, training: Training, directory: Path, seed: int = 0):
        self.training, self.seed = training, seed
        self.checkpoints = Checkpoints(directory / "checkpoints", keep=1)
        self._tracks = [Track(training.episode_steps) for _ in range(training.environments)]
        self.blocks = 0
        self.returns: deque[float] = deque(maxlen=_RECENT)
        self._return = np.zeros(training.environments)
        with global_numpy_seed(seed):
            self._observations = np.stack([track.reset(seed=i) for i, track in enumerate(self._tracks)])
        sizes = turned(self._observations).shape[-1], self._tracks[0].action_dim
        self._learner, self._keys = _learner(training, *sizes), keys_of(seed)
        if not self._restore():
            self._agent, self._replay = self._learner.init(rng.stream(seed, "init"))

    @property
    def steps(self) -> int:
        return self.blocks * self.training.block_steps

    @property
    def layers(self) -> Layers:
        return layers_of(self._agent.params["actor"])

    @property
    def policy(self) -> Policy:
        return Policy(self.layers)

    def status(self) -> dict[str, float]:
        return {"return": float(np.mean(self.returns))} if self.returns else {}

    def advance(self) -> dict[str, float]:
        """One block of steps and its updates; returns the metrics of the updates."""
        words = np.random.SeedSequence((self.seed, self.blocks)).generate_state(2)
        with global_numpy_seed(int(words[0])):
            batch = self._collect(np.random.default_rng(words[1]))
        self.blocks += 1
        if self.steps <= self.training.random_steps:
            self._replay = self._learner.add(self._replay, batch)
            return {}
        known = self._agent, self._replay
        self._agent, self._replay, metrics = self._learner.learn(self._keys, *known, batch, self.blocks)
        return metrics

    def _collect(self, draws: np.random.Generator) -> Batch:
        training = self.training
        policy = self.policy
        rows: list[tuple[np.ndarray, ...]] = []
        for _ in range(training.block):
            before = self._observations
            if self.steps < training.random_steps:
                actions = draws.uniform(-1, 1, (training.environments, self._tracks[0].action_dim)).astype(np.float32)
            else:
                actions = policy.sample(before, draws)
            steps = [track.step(action) for track, action in zip(self._tracks, actions, strict=True)]
            after, rewards, failed, over = (np.array(column) for column in zip(*steps, strict=True))
            rows.append((turned(before), actions, rewards, 1.0 - failed, turned(after)))
            self._return += rewards
            self._observations = after.copy()
            for i in np.flatnonzero(failed | over):
                self.returns.append(float(self._return[i]))
                self._return[i] = 0.0
                self._observations[i] = self._tracks[i].reset(seed=int(draws.integers(2**31)))
        columns = [np.concatenate(column).astype(np.float32) for column in zip(*rows, strict=True)]
        return Batch(*columns, next_actions=columns[1])  # SAC draws its next actions itself

    def _settings(self) -> dict[str, Any]:
        training = replace(self.training, steps=0)  # more steps may be asked for later
        return to_builtin({"training": asdict(training), "seed": self.seed})

    def save(self) -> None:
        """Write a checkpoint. The simulator's doubles go into its JSON part, which keeps every bit of them."""
        walkers = {
            "state": [track.get_state() for track in self._tracks],
            "observations": self._observations,
            "return": self._return,
            "returns": list(self.returns),
        }
        state = {"agent": self._agent, "replay": self._replay}
        self.checkpoints.save(self.steps, state, {**self._settings(), "blocks": self.blocks, "walkers": walkers})

    def _restore(self) -> bool:
        """Continue from the newest checkpoint, if there is one."""
        agent, memory = jax.eval_shape(self._learner.init, rng.stream(self.seed, "init"))
        restored = self.checkpoints.latest({"agent": agent, "replay": memory})
        if restored is None:
            return False
        extra, settings = restored.extra, self._settings()
        if {key: extra.get(key) for key in settings} != settings:
            raise DataError(
                f"{self.checkpoints.directory} holds an unfinished training with other settings. Delete it first."
            )
        self.blocks, walkers = extra["blocks"], extra["walkers"]
        for track, state in zip(self._tracks, walkers["state"], strict=True):
            track.set_state(np.array(state))
        self._observations, self._return = np.array(walkers["observations"]), np.array(walkers["return"])
        self.returns.extend(walkers["returns"])
        self._agent, self._replay = restored.state["agent"], restored.state["replay"]
        return True


class _Learner(NamedTuple):
    """Compiled functions of an agent and its memory."""

    init: Callable[[PRNGKey], tuple[Any, replay.Replay]]
    add: Callable[[replay.Replay, Batch], replay.Replay]
    learn: Callable[
        [Keys, Any, replay.Replay, Batch, int], tuple[Any, replay.Replay, Any]
    ]  # store a block, then update


@cache
def _learner(training: Training, observation_dim: int, action_dim: int) -> _Learner:
    config = rlpd.RLPDConfig(
        hidden=training.hidden,
        learning_rate=training.learning_rate,
        q_aggregate="min",
        backup_entropy=True,
        initial_temperature=training.temperature,
    )
    algorithm = rlpd.make(config, Spec((observation_dim,), action_dim))
    sizes = (observation_dim, action_dim, None, None, observation_dim, action_dim)
    example = Batch(*(np.zeros((1,) if size is None else (1, size), np.float32) for size in sizes))

    @jax.jit
    def init(key):
        return algorithm.init(key), replay.empty(example, training.capacity)

    @partial(jax.jit, donate_argnums=(1, 2))
    def learn(keys, agent, memory, new, block):
        memory = replay.add(memory, new)

        def update(agent, i):
            batch = replay.sample(memory, rng.at(keys.batch, block, i), training.batch)
            return algorithm.update(agent, batch, rng.at(keys.update, block, i))

        agent, metrics = jax.lax.scan(update, agent, jnp.arange(training.block_updates))
        return agent, memory, jax.tree.map(jnp.mean, metrics)

    return _Learner(init, jax.jit(replay.add, donate_argnums=0), learn)
