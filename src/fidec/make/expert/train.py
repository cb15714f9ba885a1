"""Train an expert with fidec's own soft actor-critic.

Walkers take a block of steps with a NumPy policy; then one compiled call stores them and does the updates that are
due. Everything that is drawn is a function of (seed, block), and a checkpoint holds everything else, so a training
that was stopped goes on exactly as if it had not been.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fidec import rng
from fidec.algos import rlpd
from fidec.data import replay
from fidec.errors import DataError
from fidec.make.expert.features import FEATURES
from fidec.make.expert.policy import Layers, Policy, layers_of
from fidec.make.expert.recipes import ExpertRecipe
from fidec.make.expert.store import load_checkpoint, save_checkpoint
from fidec.make.expert.track import Track
from fidec.quiet import global_numpy_seed
from fidec.types import Batch, Spec

_RECENT = 20  # episodes that the reported return is a mean of


class Trainer:
    """A training in progress. `advance` takes it one block further; `save` and the constructor put it on the disk."""

    def __init__(self, recipe: ExpertRecipe, directory: Path, seed: int = 0):
        self.recipe, self.directory, self.seed = recipe, directory, seed
        self._features = FEATURES[recipe.features]
        self._tracks = [Track(recipe) for _ in range(recipe.environments)]
        self.blocks = 0
        self.returns: deque[float] = deque(maxlen=_RECENT)
        self._return = np.zeros(recipe.environments)
        self.flipped: deque[float] = deque(maxlen=100)  # share of steps on the back, of the last blocks
        with global_numpy_seed(seed):
            self._observations = np.stack([track.reset(seed=i) for i, track in enumerate(self._tracks)])
        sizes = self._features(self._observations).shape[-1], self._tracks[0].action_dim
        self._learner = _learner(recipe, seed, *sizes)
        self._agent, self._replay = self._learner.init()
        self._restore()

    @property
    def steps(self) -> int:
        return self.blocks * self.recipe.block_steps

    @property
    def layers(self) -> Layers:
        return layers_of(self._agent.params["actor"])

    @property
    def policy(self) -> Policy:
        return Policy(self.layers, self.recipe.features)

    def status(self) -> dict[str, float]:
        """The mean return, and the share of steps upside down."""
        if not self.returns:
            return {}
        return {"return": float(np.mean(self.returns)), "flipped": float(np.mean(self.flipped))}

    def advance(self) -> dict[str, float]:
        """One block of steps and its updates; returns what the updates report."""
        words = np.random.SeedSequence((self.seed, self.blocks)).generate_state(2)
        with global_numpy_seed(int(words[0])):
            batch = self._collect(np.random.default_rng(words[1]))
        self.blocks += 1
        if self.steps <= self.recipe.random_steps:
            self._replay = self._learner.add(self._replay, batch)
            return {}
        self._agent, self._replay, metrics = self._learner.learn(self._agent, self._replay, batch, self.blocks)
        return metrics

    def _collect(self, draws: np.random.Generator) -> Batch:
        recipe = self.recipe
        policy = self.policy
        rows: list[tuple[np.ndarray, ...]] = []
        flipped = 0
        for _ in range(recipe.block):
            before = self._observations
            if self.steps < recipe.random_steps:
                actions = draws.uniform(-1, 1, (recipe.environments, self._tracks[0].action_dim)).astype(np.float32)
            else:
                actions = policy.sample(before, draws)
            steps = [track.step(action) for track, action in zip(self._tracks, actions, strict=True)]
            after, rewards, failed, over = (np.array(column) for column in zip(*steps, strict=True))
            ends = failed | over if recipe.end_is_terminal else failed
            rows.append((self._features(before), actions, rewards, 1.0 - ends, self._features(after)))
            flipped += sum(track.up < 0 for track in self._tracks)
            self._return += rewards
            self._observations = after.copy()
            for i in np.flatnonzero(failed | over):
                self.returns.append(float(self._return[i]))
                self._return[i] = 0.0
                self._observations[i] = self._tracks[i].reset(seed=int(draws.integers(2**31)))
        self.flipped.append(flipped / recipe.block_steps)
        columns = [np.concatenate(column).astype(np.float32) for column in zip(*rows, strict=True)]
        return Batch(*columns, next_actions=columns[1])  # SAC draws its next actions itself

    def _facts(self) -> dict[str, Any]:
        recipe = replace(self.recipe, steps=0)  # more steps may be added later
        return {"recipe": asdict(recipe), "seed": self.seed}

    def save(self) -> None:
        """Write a checkpoint."""
        walkers = {
            "state": np.stack([track.get_state() for track in self._tracks]),
            "observations": self._observations,
            "return": self._return,
            "returns": np.array(self.returns),
        }
        arrays = _named({"agent": self._agent, "replay": self._replay})
        arrays |= {f"walkers/{key}": array for key, array in walkers.items()}
        save_checkpoint(self.directory, arrays, {**self._facts(), "blocks": self.blocks, "steps": self.steps})

    def _restore(self) -> None:
        found = load_checkpoint(self.directory, self._facts())
        if found is None:
            return
        try:
            self._take_up(*found)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{self.directory} holds a checkpoint that does not fit this training ({error}). "
                "Delete it to train anew."
            ) from error

    def _take_up(self, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
        self.blocks = facts["blocks"]
        for track, state in zip(self._tracks, arrays["walkers/state"], strict=True):
            track.set_state(state)
        self._observations, self._return = arrays["walkers/observations"].copy(), arrays["walkers/return"].copy()
        self.returns.extend(arrays["walkers/returns"].tolist())
        tree = {"agent": self._agent, "replay": self._replay}
        leaves = [jnp.array(arrays[name]).reshape(leaf.shape) for name, leaf in _named(tree).items()]
        tree = jax.tree.unflatten(jax.tree.structure(tree), leaves)
        self._agent, self._replay = tree["agent"], tree["replay"]


def _named(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


class _Learner(NamedTuple):
    """Compiled functions of an agent and its memory."""

    init: Callable[[], tuple[Any, replay.Replay]]
    add: Callable[[replay.Replay, Batch], replay.Replay]
    learn: Callable[[Any, replay.Replay, Batch, int], tuple[Any, replay.Replay, Any]]  # store a block, then update


@cache
def _learner(recipe: ExpertRecipe, seed: int, observation_dim: int, action_dim: int) -> _Learner:
    config = rlpd.RLPDConfig(
        hidden=recipe.hidden,
        learning_rate=recipe.learning_rate,
        q_aggregate=recipe.aggregate,
        backup_entropy=True,
        initial_temperature=recipe.temperature,
    )
    algorithm = rlpd.make(config, Spec((observation_dim,), action_dim))
    sizes = (observation_dim, action_dim, None, None, observation_dim, action_dim)
    example = Batch(*(np.zeros((1,) if size is None else (1, size), np.float32) for size in sizes))
    batch_key, update_key = rng.stream(seed, "batch"), rng.stream(seed, "update")

    @jax.jit
    def init():
        memory = replay.empty(example, recipe.capacity)
        return algorithm.init(rng.stream(seed, "init")), memory

    @partial(jax.jit, donate_argnums=(0, 1))
    def learn(agent, memory, new, block):
        memory = replay.add(memory, new)

        def update(agent, i):
            batch = replay.sample(memory, rng.at(batch_key, block, i), recipe.batch)
            return algorithm.update(agent, batch, rng.at(update_key, block, i))

        agent, metrics = jax.lax.scan(update, agent, jnp.arange(recipe.block_updates))
        return agent, memory, jax.tree.map(jnp.mean, metrics)

    return _Learner(init, jax.jit(replay.add, donate_argnums=0), learn)
