"""What a run needs before it starts or resumes: its data, its method, and whether a checkpoint belongs to it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NotRequired, TypedDict, cast

import jax
import numpy as np

from fidec import algos, rng
from fidec.data import OfflineDataset, check_dataset
from fidec.errors import ConfigError, DataError, RunError
from fidec.store.checkpoint import Restored
from fidec.store.rundir import RunDirectory, results_of
from fidec.train.buffer import check_buffer
from fidec.train.config import RunConfig
from fidec.train.pretrained_flow import Flow, check_takes_flow, load_flow, proposal_shapes
from fidec.train.value_scale import check_value_start
from fidec.train.warm_start import Initial, check_initial
from fidec.types import Spec


def check_rewards(algo: str, datasets: list[OfflineDataset]) -> None:
    """Raise if the method learns from rewards and a data set has none."""
    if not algos.get(algo).needs_rewards:
        return
    for dataset in datasets:
        if not dataset.has_rewards:
            without = ", ".join(name for name, method in algos.METHODS.entries() if not method.needs_rewards)
            raise DataError(
                f"{dataset.source}: the data has no rewards, and {algo} learns from them. Add the key 'rewards', or "
                f"train a method that needs none: {without}."
            )


def check_chunk(chunk: int, datasets: list[OfflineDataset]) -> None:
    """Raise if no episode has all steps of a chunk: its last actions could not be learned."""
    longest = max(int(np.diff(dataset.episodes).max()) for dataset in datasets)
    if chunk > longest:
        raise ConfigError(
            f"--chunk {chunk} is longer than every episode of {' and '.join(each.source for each in datasets)}: the "
            f"longest has {longest} steps. Give at most --chunk {longest}"
        )


def is_checked(config: RunConfig, dataset: OfflineDataset) -> bool:
    """Whether the data is checked before training. A task's data is known; data on the disk is read often enough."""
    return config.task is None and config.check_data and not dataset.mapped


def data_warnings(config: RunConfig, dataset: OfflineDataset) -> list[str]:
    """What the checker warns about in the user's own data. Raises DataError for what it calls an error."""
    if not is_checked(config, dataset):
        return []
    findings = check_dataset(dataset).findings
    if errors := [finding.text for finding in findings if finding.severity == "error"]:
        raise DataError(
            f"{dataset.source}: {' '.join(errors)} `fidec data check` shows all findings. To train nevertheless, set "
            "--check-data False."
        )
    scale = [] if config.normalize_observations else ["scale"]
    shown = [finding for finding in findings if finding.severity == "warning" or finding.topic in scale]
    return [f"data, {finding.topic}: {finding.text}" for finding in shown]


def with_data(config: RunConfig, dataset: OfflineDataset) -> RunConfig:
    """The configuration with the data's rewards for the online phase, which is checked against the data."""
    if not config.online_steps:
        return config
    if dataset.spec.parts:
        names = ", ".join(part.name for part in dataset.spec.parts)
        raise ConfigError(
            f"online training takes observations of a single array, and the data has the parts {names}. Leave out "
            "--online-steps, or join vectors to one array, in the data and in the environment"
        )
    check_buffer(config.online, dataset.size, config.batch_size)
    done = config.online.reward_done
    if done is not None and (not math.isfinite(done) or "reward_done" not in dataset.info):
        raise ConfigError(
            f"online.reward_done {done}: it is a number for runs whose --reward-rule changes the rewards of the data"
        )
    of_data = {
        "reward_shift": float(dataset.info.get("reward_shift") or 0.0),
        "reward_done": dataset.info.get("reward_done"),
    }
    missing = {name: value for name, value in of_data.items() if getattr(config.online, name) is None}
    return dataclasses.replace(config, online=dataclasses.replace(config.online, **missing))


def check_method(config: RunConfig, dataset: OfflineDataset, spec: Spec, initial: Initial | None) -> None:
    """Raise if the method cannot use this data or state, or cannot act as the evaluations will ask it to."""
    algorithm = algos.get(config.algo).build(config.options, spec)
    key = rng.stream(config.seed, "evaluate")
    state = jax.eval_shape(algorithm.init, key)
    if initial is not None:
        check_initial(config, initial, spec, state)
    if config.held_out and algorithm.validate is None:
        raise ConfigError(
            "--validation is for methods that imitate the data, and for the flow of --flow-updates: "
            f"{config.algo} learns values and has no loss that held-out data could judge"
        )
    _ = config.window  # raises if the method has no value
    check_value_start(config, state)
    if config.value_start == "data" and initial is not None:
        raise ConfigError("--value-start data and --init-from exclude each other: the critic starts from that run")
    if config.reward_scale == "data" and initial is not None:
        raise ConfigError(
            "--reward-scale data and --init-from exclude each other: the critic has the scale of that run. Give it "
            "as a number"
        )
    if config.has_flow:
        check_takes_flow(algorithm, config.algo)
        proposal_shapes(algorithm, spec, 1)  # raises if the constraint needs more proposals
    if config.flow is not None:
        load_flow(config.flow, config, dataset, spec)
    act = config.act.function(algorithm)  # raises if the method cannot act like that
    dials = config.act.dials(act)
    if config.env_name is None:
        return
    observation = spec.observations(lambda part: jax.ShapeDtypeStruct(part.shape, part.dtype))
    jax.eval_shape(act, state, observation, key, **dials)


def check_agree(dataset: OfflineDataset, buffer: OfflineDataset) -> None:
    """Raise unless the rows of both can be in one batch."""
    if differences := buffer.spec.differences(dataset.spec):
        raise ConfigError(
            f"{dataset.source} and the buffer {buffer.source} cannot be mixed: the buffer has "
            f"{'; '.join(differences)}. Both must come from the same task."
        )


class Identity(TypedDict):
    """Part of every checkpoint. Hashes, but for the configuration."""

    config: dict[str, Any]
    data: str
    buffer: str | None
    init: NotRequired[str]  # of the state that the run started from
    flow: NotRequired[str]  # of the behaviour flow that was trained before


def identity_of(
    config: RunConfig, dataset: OfflineDataset, buffer: OfflineDataset | None, **given: Initial | Flow | None
) -> Identity:
    """The options that a resumed run cannot change, and the hashes of its data and of what other runs gave it."""
    second = None if buffer is None else buffer.sha256
    identity: Identity = {"config": config.fixed(), "data": dataset.sha256, "buffer": second}
    return cast(Identity, {**identity, **{name: each.sha256 for name, each in given.items() if each is not None}})


def check_identity(directory: RunDirectory, restored: Restored, own: Identity) -> None:
    """Raise unless the checkpoint was saved by a run with these options, on this data."""
    saved = restored.extra.get("identity")
    if saved is None:  # a run of an older version
        return
    other = [
        f"{name} {saved['config'][name]}, now {value}"
        for name, value in own["config"].items()
        if name in saved["config"] and saved["config"][name] != value
    ]
    other += [
        f"{name} with SHA-256 {str(saved.get(name))[:12]}, now {str(own.get(name))[:12]}"
        for name in ("data", "buffer", "init", "flow")
        if saved.get(name) != own.get(name)
    ]
    if other:
        raise RunError(
            f"{directory.path}: the checkpoint of step {restored.step} was saved with {'; '.join(other)}. "
            "Its configuration or its data is not that of this run. Restore them, or start a new run."
        )


def check_never_saved(directory: RunDirectory) -> None:
    """Raise if the run has saved before: without its checkpoints it would start again and overwrite the rest.

    A run that was killed or failed before its first checkpoint has logs, and starts again.
    """
    failed = (directory.read_status() or {}).get("state") == "failed"
    left = [name for name in results_of(directory.path) if not name.endswith(".jsonl")]
    if left and not (failed and all(name.startswith("status.json") for name in left)):
        raise RunError(
            f"{directory.path} has no checkpoints, but it was saved before: it has {', '.join(left)}. Restore "
            "checkpoints/ from a copy, or start again with --overwrite, which deletes what is left."
        )
