"""The policies among which a selection chooses: base and refined ones of runs, at several noises and strengths."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fidec import algos
from fidec.errors import ConfigError
from fidec.train.acting import has_dial
from fidec.train.assess import Assessment
from fidec.train.policy import Policy


@dataclass(frozen=True)
class Candidate:
    """A policy with its factors of noise and displacement."""

    source: Assessment
    noise: float
    strength: float | None
    """0: the base policy. None: the method refines no base policy."""
    clone: bool
    """Whether it only imitates the data: a base policy, or a method that needs no rewards."""

    @property
    def name(self) -> str:
        """In words: run, noise, and strength if there is a choice."""
        strength = "" if self.strength is None else f", strength {self.strength:g}"
        return f"{self.source.directory} with noise {self.noise:g}{strength}"

    @property
    def options(self) -> str:
        """The options of `fidec eval` that play it."""
        factors = {"noise": self.noise, "strength": self.how["strength"]}
        base = " --base" if self.strength == 0 else ""
        return base + "".join(f" --{name} {value:g}" for name, value in factors.items() if value != 1)

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of an evaluation. The base policy is a single draw, as in `Assessment.evaluate`."""
        base = self.strength == 0
        return {
            "base": base,
            "candidates": 1 if base else self.source.candidates,
            "noise": self.noise,
            "strength": 1.0 if base or self.strength is None else self.strength,
        }


def candidates_of(
    sources: Sequence[Assessment], noises: Sequence[float], strengths: Sequence[float]
) -> list[Candidate]:
    """All candidates: clones first, then by strength, by run, and by noise in the given order.

    Base policies are always among them. One that several runs share counts once. A method that cannot scale its noise
    or its displacement has its own only.
    """
    _check_factors("--noises", noises)
    _check_factors("--strengths", strengths)
    found, clones = list[Candidate](), set[Hashable]()
    for number, source in enumerate(sources):
        act, flow = source.policy.algorithm.act, _flow_of(source.policy) or number
        imitates = not algos.get(source.policy.algo).needs_rewards
        for strength in _strengths(source.policy, strengths):
            clone = imitates or strength == 0
            if clone and flow in clones:
                continue
            if clone:
                clones.add(flow)
            for noise in dict.fromkeys(noises) if has_dial(act, "noise") else (1.0,):
                found.append(Candidate(source, float(noise), strength, clone))
    return sorted(found, key=lambda each: (not each.clone, 1.0 if each.strength is None else each.strength))


def _check_factors(option: str, values: Sequence[float]) -> None:
    if not values or not all(np.isfinite(value) and value >= 0 for value in values):
        given = " ".join(f"{value:g}" for value in values) or "nothing"
        raise ConfigError(f"{option} takes finite numbers that are not negative, not {given}")


def _strengths(policy: Policy, strengths: Sequence[float]) -> Sequence[float | None]:
    if policy.algorithm.act_with_base is None:
        return (None,)
    if has_dial(policy.algorithm.act, "strength"):
        return sorted({0.0, *map(float, strengths)})
    return (0.0, 1.0)


def _flow_of(policy: Policy) -> Hashable:
    """The same for policies with the same behaviour flow; None if they have none."""
    params = getattr(policy.state, "params", None)
    if not isinstance(params, Mapping) or "flow" not in params:
        return None
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(params["flow"]):
        array = np.asarray(leaf)
        digest.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest(), getattr(policy.options, "flow_steps", None), policy.spec
