"""Read a policy that `Policy.save` wrote. Hashes are checked first, then every value that its use depends on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from fidec import algos, compilation, rng
from fidec.errors import CheckpointError
from fidec.parts import is_part_name
from fidec.store import files, trees
from fidec.store.directories import read_directory
from fidec.store.rundir import runs_below
from fidec.store.staging import local_run
from fidec.train.policy import CARD, FORMAT, MODEL, Policy
from fidec.train.stored import config_from_json, spec_from_json
from fidec.types import Spec

_NAMED = 10  # runs in an error message


class Card(TypedDict):
    format: int
    algo: str
    options: dict[str, Any]
    spec: dict[str, Any]
    info: NotRequired[dict[str, Any] | None]


def policy_directory(directory: str | Path) -> Path:
    """The directory of a policy: this one, or the `policy/` of a run. CheckpointError if there is none.

    Of a URL it is a local copy.
    """
    directory = local_run(directory)
    is_run = (directory / "run.json").exists()
    if is_run or (not (directory / CARD).exists() and (directory / "policy").is_dir()):
        directory = directory / "policy"
    if not directory.is_dir() and not files.hidden(directory, "old").is_dir():  # which takes its place in a moment
        if is_run:
            raise CheckpointError(
                f"the run {directory.parent} has no policy yet: it is saved with the first checkpoint"
            )
        raise CheckpointError(f"there is no policy at {directory}: no such directory")
    return directory


def load_policy(directory: str | Path) -> Policy:
    """Read a policy directory, or the `policy/` of a run, also at a URL such as s3://bucket/runs/mine.

    Its hashes are checked, and no code is loaded from it.
    """
    directory = policy_directory(directory)
    return read_directory(directory, lambda: _read_policy(directory))  # training may save it meanwhile


def _read_policy(directory: Path) -> Policy:
    if not any((directory / name).exists() for name in (CARD, MODEL, files.MANIFEST)):
        raise CheckpointError(f"{directory} is neither a run nor a policy. {_runs_in(directory)}")
    files.verify_manifest(directory)
    compilation.enable()
    card = files.read_json(directory / CARD, Card)
    try:
        return _from_card(directory, card)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"{directory / CARD} does not describe a policy: {type(error).__name__}: {error}"
        ) from error


def _runs_in(directory: Path) -> str:
    runs = runs_below(directory)
    if not runs:
        return "There is no run below it."
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return f"Name one of the runs below it: {', '.join(map(str, runs[:_NAMED]))}{more}."


def _from_card(directory: Path, card: dict[str, Any]) -> Policy:
    if card.get("format") != FORMAT:
        raise CheckpointError(f"{directory / CARD} has format {card.get('format')!r}, this fidec reads {FORMAT}")
    spec = spec_from_json(card["spec"])
    _check_spec(directory / CARD, spec)
    method = algos.get(card["algo"])
    options = config_from_json(method.config_for(card["options"]), card["options"])
    algorithm = method.build(options, spec)
    template = jax.eval_shape(lambda key: algorithm.policy(algorithm.init(key)), rng.stream(0, "init"))
    loaded = trees.load_tree(directory / MODEL, template)
    if text := trees.describe_non_finite(trees.flatten_tree(loaded)):
        raise CheckpointError(
            f"{directory / MODEL}: {text}. Such a policy cannot act. Take it from another checkpoint."
        )
    state = jax.tree.map(jnp.asarray, loaded)
    return Policy(card["algo"], options, spec, state, card.get("info"))


def _check_spec(path: Path, spec: Spec) -> None:
    """Raise unless shapes, action bounds and normalisation of a stored specification can be used."""

    def refuse(text: str) -> CheckpointError:
        return CheckpointError(f"{path}: {text}. The policy was changed or written by another program.")

    sizes = [size for part in spec.inputs for size in (len(part.shape), *part.shape)]
    if min(*sizes, spec.action_dim, spec.frame_stack, spec.history) < 1:
        raise refuse("observation_shape, action_dim, frame_stack and history have to be positive")
    names = [part.name for part in spec.parts]
    if any(not is_part_name(name) for name in names):  # an export has them in its code
        raise refuse("names of parts have to be letters, digits, '_', '.' and '-'")
    if names != sorted(set(names)) or (spec.parts and (spec.observation_shape or len(names) < 2)):
        raise refuse("parts have to be at least two, sorted by name, in the place of observation_shape")
    if any(part.shape[-1] % spec.stack_of(part) for part in spec.inputs):
        raise refuse("frame_stack and history have to divide the last axis of observations")
    if not 1 <= spec.replan <= spec.chunk or spec.action_dim % spec.chunk:
        raise refuse("chunk has to divide action_dim, and replan has to lie between 1 and chunk")
    if spec.delay < 0:
        raise refuse("delay has to be 0 or more")
    if spec.ensemble is not None and not (spec.replan < spec.chunk and math.isfinite(spec.ensemble)):
        raise refuse("ensemble has to be a finite number, and replan less than chunk")
    pairs: list[tuple[str, str, tuple[int, ...], list[Any]]] = [
        ("action_low", "action_high", (spec.step_dim,), [spec.action_low, spec.action_high])
    ]
    for part in spec.inputs:
        pairs.append(("observation_mean", "observation_std", part.shape, [part.mean, part.std]))
    for first, second, shape, values in pairs:
        if values == [None, None]:
            continue
        for name, value in zip((first, second), values, strict=True):
            if value is None or np.shape(value) != shape or np.abs(value).max() > np.finfo(np.float32).max:
                raise refuse(f"{name} is {value}, expected finite numbers of shape {shape}")
        if first == "action_low" and not np.less(*values).all():
            raise refuse(f"action_low {values[0]} is not below action_high {values[1]}")
        if first == "observation_mean" and not np.greater(values[1], 0).all():
            raise refuse(f"observation_std is {values[1]}, expected positive numbers")
