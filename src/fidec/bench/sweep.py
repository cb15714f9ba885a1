"""A sweep: a run for every combination of methods, listed values of options, and seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from fidec.bench.data import missing
from fidec.bench.jobs import Job
from fidec.bench.suites import Plan, Variant
from fidec.errors import ConfigError, DataError, naming
from fidec.train.config import RunConfig
from fidec.train.resolve import resolve, seed_name

OWN = {"seed": "--seeds", "algo": "--algos", "out": "--out"}  # options that a sweep sets, and how
# Options of `fidec train` that have no meaning for many runs.
REFUSED = ("resume", "overwrite", "json", "coordinator", "process", "processes")


class Combination(NamedTuple):
    """A method with chosen values: arguments of `fidec train`, and a name for the values."""

    words: tuple[str, ...]
    suffix: str


def parse_vary(text: str) -> tuple[str, list[str]]:
    """`algo.budget=0.01,0.03` as an option and its values."""
    option, equals, values = text.partition("=")
    option = option.removeprefix("--").replace("_", "-").strip()
    listed = [value.strip() for value in values.split(",")]
    if not equals or not option or not all(listed):
        raise ConfigError(f"--vary {text!r}: expected OPTION=VALUE,VALUE,..., such as algo.budget=0.01,0.03")
    if option in OWN or option in REFUSED:
        advice = f"use {OWN[option]}" if option in OWN else "it has no meaning for a sweep"
        raise ConfigError(f"--vary {text!r}: {option} cannot be varied: {advice}")
    return option, listed


def combine(given: Sequence[str], algos: Sequence[str], vary: Sequence[str]) -> list[Combination]:
    """Every combination of methods and values. `given` are the options that all of them share."""
    choices = [parse_vary(text) for text in vary]
    methods = [dict(zip(("algo", "preset"), filter(None, word.partition(":")[::2]), strict=False)) for word in algos]
    chosen = [option for option, _ in choices]
    by_algos = {name for method in methods for name in method}
    for number, option in enumerate(chosen):
        if option in by_algos or option in chosen[:number]:
            other = "--algos METHOD:PRESET" if option in by_algos else "another --vary"
            raise ConfigError(f"--vary {option}: its values are given by {other} too: leave one of them out")
    chosen += sorted(by_algos)
    for name in (*chosen, "seed", *REFUSED):
        if any(word.partition("=")[0].replace("_", "-") == f"--{name}" for word in given):
            how = OWN.get(name) or ("--vary or --algos" if name in chosen else "")
            advice = f"leave it out: {how} gives its values" if how else "it has no meaning for a sweep"
            raise ConfigError(f"--{name}: {advice}")
    made = []
    for method, values in product(methods or [{}], product(*(values for _, values in choices))):
        named = [(option, value) for (option, _), value in zip(choices, values, strict=True)]
        words = [word for name, value in method.items() for word in (f"--{name}", value)]
        words += [word for option, value in named for word in (f"--{option}", *value.split())]
        suffix = "_".join(f"{option.removeprefix('algo.')}={_file_name(value)}" for option, value in named)
        made.append(Combination((*given, *words), suffix))
    return made


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-")


def sweep_jobs(
    parse: Callable[[list[str]], RunConfig], combinations: Sequence[Combination], seeds: Sequence[int], out: Path
) -> list[Job]:
    """The jobs of all combinations and seeds. All are checked: options, environment, and whether there is data."""
    if not seeds:
        raise ConfigError("--seeds is empty, expected at least one seed")
    jobs: dict[Path, Job] = {}
    for each in combinations:
        with naming(" ".join(each.words) or "defaults"):
            config = resolve(parse(list(each.words)))
            variant = Variant(config.algo, config.preset, suffix=each.suffix)
            interval = config.eval_interval if config.env_name else 0
            sizes: dict[str, Any] = {"online_steps": config.online_steps, "batch_size": config.batch_size}
            plan = Plan(config.steps, interval, config.eval_episodes, (config.total,), **sizes)
            for seed in seeds:
                place = out / variant.name / seed_name(seed)
                job = Job(replace(config, seed=seed, out=place), variant, plan)
                if place in jobs:
                    raise ConfigError(f"{place} would hold two runs: each method, value and seed can be given once")
                jobs[place] = job
            job.check_environment()
            if reason := missing(job):
                raise DataError(reason)
    return list(jobs.values())
