"""The start of a run from a checkpoint of another run.

The method's state (parameters, targets, optimisers) and the statistics that normalise the observations are copied
into the new run. So the new run can be resumed without the other one:

    init/  state.safetensors   every array of the method's state
           manifest.json       its SHA-256, where it comes from, and the specification of the other run's data
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from fidec.errors import CheckpointError, ConfigError, naming
from fidec.store import files, trees
from fidec.store.checkpoint import STATE, Checkpoints
from fidec.store.directories import replacing_directory
from fidec.store.rundir import RunDirectory
from fidec.train.config import RunConfig
from fidec.train.policy import load_policy
from fidec.train.stored import read_config, spec_from_json
from fidec.types import Spec

_STATE = "state/"  # the method's part of a checkpoint


class Record(TypedDict):
    """What the manifest holds besides the hashes."""

    spec: dict[str, Any]
    origin: str


class Initial(NamedTuple):
    """What a run starts with instead of a random state."""

    arrays: dict[str, np.ndarray]  # of the method's state, by path
    spec: Spec  # of the other run
    origin: str  # the other run and its step, for messages
    sha256: str = ""  # of the stored arrays
    options: Mapping[str, Any] = MappingProxyType({})  # of the method in the other run; not stored

    def state_like(self, template: Any) -> Any:
        """The state in the structure of `template`; CheckpointError names the first array that does not fit."""
        return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), trees.unflatten_like(template, self.arrays))

    def save(self, place: Path, verify: Callable[[], None]) -> None:
        with files.writing(place, "the state that the run starts from"), replacing_directory(place, verify) as new:
            trees.save_flat(new / STATE, self.arrays)
            files.write_manifest(new, {"spec": dataclasses.asdict(self.spec), "origin": self.origin})


def read_initial(place: Path) -> Initial:
    """The copy that `save` made."""
    record = files.verify_manifest(place)
    files.check_schema(place / files.MANIFEST, record, Record)
    spec = spec_from_json(record["spec"])
    return Initial(trees.load_flat(place / STATE), spec, record["origin"], files.sha256_file(place / STATE))


def with_initial(config: RunConfig) -> tuple[RunConfig, Initial]:
    """The newest checkpoint of the run `init_from`, and the configuration with its normalisation and its rewards.

    The configuration is resolved: its paths are absolute.
    """
    run = config.init_from
    assert run is not None
    with naming("--init-from"):
        directory = RunDirectory.open(run, read_only=True)
        other = read_config(directory)
        newest = Checkpoints(directory.checkpoints, read_only=True).newest()
        if newest is None:
            raise CheckpointError(f"{run} has no checkpoint")
        spec = load_policy(run).spec
    for name in ("algo", "normalize_observations", "reward_rule"):
        own, theirs = getattr(config, name), getattr(other, name)
        if own is not None and own != theirs:
            raise ConfigError(f"--init-from {run}: its {name} is {theirs}, here it is {own}. {_advice(run)}")
    arrays = {name.removeprefix(_STATE): a for name, a in newest.arrays.items() if name.startswith(_STATE)}
    config = dataclasses.replace(
        config, normalize_observations=other.normalize_observations, reward_rule=other.reward_rule or "given"
    )
    return config, Initial(arrays, spec, f"step {newest.step} of {run}", options=dataclasses.asdict(other.options))


def check_initial(config: RunConfig, initial: Initial, spec: Spec, template: Any) -> None:
    """Raise ConfigError if the state does not fit the data or the networks of this run."""
    names = ("observation_shape", "observation_dtype", "parts", "chunk", "step_dim", "bounds")
    differences = initial.spec.differences(spec, (*names, "frame_stack", "history"))
    try:
        trees.unflatten_like(template, initial.arrays)
    except CheckpointError as error:
        options = dataclasses.asdict(config.options).items()
        other = [(name, initial.options.get(name, value), value) for name, value in options]
        differences += [f"{name} {theirs} instead of {ours}" for name, theirs, ours in other if theirs != ours]
        differences = differences or [str(error)]
    if differences:
        run = config.init_from
        raise ConfigError(f"--init-from {run} does not fit: it has {'; '.join(differences)}. {_advice(run)}")


def _advice(run: Any) -> str:
    return f"`--config {run}/config.json` takes over all its options"
