"""The behaviour flow first: its own run, its proposals at the next states, and its place in the method's state.

A run with a flow of its own keeps it in `flow/`, a run directory or a copy of a policy. The proposals are a function
of the flow, the data and the seed. So a resumed run draws them again instead of storing them.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fidec import algos, rng
from fidec.algos import Algorithm
from fidec.console import Progress
from fidec.data.batches import Sampling, host_source, map_batches
from fidec.data.dataset import OfflineDataset
from fidec.errors import ConfigError
from fidec.store import files
from fidec.store.directories import replacing_directory
from fidec.store.rundir import RunDirectory
from fidec.train.config import OnlineConfig, RunConfig
from fidec.train.loop import Signals
from fidec.train.policy import MODEL, load_policy, policy_directory
from fidec.train.training_data import check_same_data
from fidec.types import Params, Spec

METHOD = "flow_bc"
ROWS, IMAGES = 2048, 64  # states whose proposals are drawn at once; each image is repeated for all its proposals
SHARE = 0.05  # of the episodes, held out while the flow is trained


class Flow(NamedTuple):
    """A trained flow, and the hash of its weights."""

    params: Params
    sha256: str


def stage_config(config: RunConfig, out: Path, episodes: int) -> RunConfig:
    """The run that trains the flow: the same data, networks and seed, without evaluations."""
    known = algos.get(METHOD).config.__dataclass_fields__
    shared = {name: getattr(config.options, name) for name in known if hasattr(config.options, name)}
    validation = SHARE if config.validation is None else config.validation
    if config.validation is None and episodes < 1 / SHARE:
        validation = 0.0
    return dataclasses.replace(
        config,
        task=None,
        env=None,
        algo=METHOD,
        preset="recommended",
        options=algos.get(METHOD).configure(**shared),
        steps=config.flow_updates or 0,
        online_steps=0,
        online=OnlineConfig(),
        eval_interval=0,
        flow_updates=0,
        n_step=None,
        value_start="zero",
        reward_scale=1.0,
        reward_rule="given",
        init_from=None,
        candidates=1,
        noise=1.0,
        validation=validation,
        check_data=False,
        split_critics=False,
        track=None,
        out=out,
    )


def stage_state(place: Path) -> str | None:
    """The state of the run that trains the flow; None if it has not begun."""
    if not (place / "config.json").exists():
        return None
    return (RunDirectory.open(place, read_only=True).read_status() or {"state": "failed"})["state"]


def copy_flow(source: Path, place: Path, verify: Callable[[], None]) -> None:
    """Copy the policy that holds the flow, so that a resumed run does not need the other one."""
    origin = policy_directory(source)
    files.verify_manifest(origin)
    with files.writing(place, "the behaviour flow"), replacing_directory(place, verify) as new:
        for path in origin.iterdir():
            if path.is_file():
                shutil.copy(path, new / path.name)


def load_flow(place: Path, config: RunConfig, dataset: OfflineDataset, spec: Spec) -> Flow:
    """The flow of a run or a policy. ConfigError if it was trained on other data or does not fit the method."""
    policy = load_policy(place)
    params = (policy.state.params or {}).get("flow") if hasattr(policy.state, "params") else None
    if params is None:
        raise ConfigError(f"{config.flow or place}: {policy.algo} has no behaviour flow")
    origin = f"the flow of {config.flow or place}"
    advice = "Train a flow on this data, with --flow-updates"
    check_same_data(origin, policy.info.get("data_sha256"), dataset, advice, ConfigError)
    ignored = ("chunk", "replan", "ensemble", "parts")  # the chunk is first below: it explains the dimension
    names = [field.name for field in dataclasses.fields(Spec) if field.name not in ignored]
    if differences := policy.spec.differences(spec, ("chunk", *names, "parts", "inputs")):
        raise ConfigError(
            f"{origin} does not fit: it has {differences[0]}. Give both the same options for observations and actions"
        )
    algorithm = algos.get(config.algo).build(config.options, spec)
    wanted = jax.eval_shape(algorithm.init, rng.stream(0, "init")).params.get("flow")
    shapes = [jax.tree.map(lambda leaf: leaf.shape, tree) for tree in (params, wanted)]
    if shapes[0] != shapes[1]:
        raise ConfigError(
            f"{origin} has networks of {getattr(policy.options, 'hidden', 'another size')}, {config.algo} has "
            f"{getattr(config.options, 'hidden', 'others')}: give them the same --algo.hidden"
        )
    return Flow(params, files.sha256_file(policy_directory(place) / MODEL))


def check_takes_flow(algorithm: Algorithm, name: str) -> None:
    """Raise ConfigError unless the method can be trained with a frozen flow."""
    if algorithm.propose is None:
        raise ConfigError(f"{name} cannot be trained with a frozen flow: it has none, or learns it with its policy")


def with_flow(state: Any, flow: Flow) -> Any:
    """The state with this flow instead of its own."""
    params = {**state.params, "flow": jax.tree.map(jnp.array, flow.params)}
    target = state.target
    if target and "flow" in target:
        target = {**target, "flow": jax.tree.map(jnp.array, flow.params)}
    return state._replace(params=params, target=target)


def proposal_shapes(algorithm: Algorithm, spec: Spec, rows: int) -> Any:
    """Shapes of the proposals for so many rows; None if the method cannot be trained with a frozen flow."""
    if algorithm.propose is None:
        return None
    key = rng.stream(0, "propose")
    observations = spec.observations(lambda part: jax.ShapeDtypeStruct((rows, *part.shape), part.dtype))
    return jax.eval_shape(algorithm.propose, jax.eval_shape(algorithm.init, key), observations, key)


def draw_proposals(
    algorithm: Algorithm,
    state: Any,
    dataset: OfflineDataset,
    sampling: Sampling,
    seed: int,
    signals: Signals,
    quiet: bool,
    folder: Path | None = None,
) -> Any:
    """What the frozen flow proposes at each next observation. None if a signal arrives.

    Large proposals are in files of the `folder`, else they are in main memory.
    """
    spec = dataset.spec.stacked(sampling.frame_stack, sampling.history)
    if not jax.tree.leaves(proposal_shapes(algorithm, spec, 1)):
        return {}
    key, total = rng.stream(seed, "propose"), dataset.size
    assert algorithm.propose is not None  # `check_takes_flow`
    propose = jax.jit(algorithm.propose)
    with Progress(total, name="drawing the flow's proposals", unit="row", enabled=not quiet) as progress:
        return map_batches(
            lambda batch, first: propose(state, batch.next_observations, rng.at(key, first)),
            host_source(dataset, sampling),
            np.arange(total),
            sampling,
            size=IMAGES if dataset.spec.images else ROWS,
            report=progress.update,
            stopped=lambda: signals.received is not None,
            folder=folder,
        )
