"""Several budgets of a method on one behaviour flow. The flow is trained once, and each budget is an ordinary run.

OUT/flow/seedNNN        the behaviour flow (flow_bc)
OUT/budget-X/seedNNN    the method with this budget, on the frozen flow
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fidec.bench.data import missing
from fidec.bench.jobs import Job
from fidec.bench.schedule import run_all
from fidec.bench.suites import Variant
from fidec.bench.sweep import REFUSED, make_job
from fidec.errors import ConfigError, DataError, RunError
from fidec.executors import Request
from fidec.train.config import RunConfig
from fidec.train.pretrained_flow import METHOD, stage_config
from fidec.train.resolve import resolve, seed_name

NATS = (0.05, 0.1, 0.2, 0.4)  # 0.1 to 0.3 nats was best on three tasks
# A budget in the unit of the penalty means another distance on each task: on the same three tasks it was best at
# values that differ by a factor of a thousand.
FACTORS = (0.1, 1.0, 10.0, 100.0)


def read(config: RunConfig, given: Sequence[str]) -> RunConfig:
    """The configuration that all runs share, of the options `given` to `fidec tune`."""
    for name in ("seeds", *REFUSED):
        if any(word.partition("=")[0].replace("_", "-") == f"--{name}" for word in given):
            raise ConfigError(f"--{name} has no meaning for `fidec tune`: leave it out")
    if config.task is None and config.data is None:
        raise ConfigError("there is no data: name a --task, or a data source with --data")
    if config.online_steps:
        raise ConfigError("`fidec tune` is for offline training: leave out --online-steps")
    config = resolve(config)
    if not any(word.partition("=")[0].replace("_", "-") == "--eval-interval" for word in given):
        config = replace(config, eval_interval=0)  # episodes are for the choice
    return config


def default_budgets(options: Any, algo: str) -> tuple[float, ...]:
    """Budgets in nats, or multiples of the method's own if the unit is that of the penalty."""
    check_has_budget(options, algo)
    budget, unit = options.trust_region()
    return NATS if unit == "nats" else tuple(float(f"{factor * budget:g}") for factor in FACTORS)


def check_has_budget(options: Any, algo: str) -> None:
    if not hasattr(options, "trust_region"):
        raise ConfigError(f"{algo} has no budget: `fidec tune` is for fidec, deflow and fidec_closed_form")


def candidates(budgets: Sequence[float], noises: Sequence[float], strengths: Sequence[float]) -> int:
    """The number of candidates of the choice: the clone, and each budget at each other strength."""
    return len(set(noises)) * (1 + len(budgets) * len({*strengths} - {0.0}))


def budget_jobs(config: RunConfig, budgets: Sequence[float], out: Path) -> list[Job]:
    """A job for each budget. All are checked: options, environment, and whether there is data."""
    check_has_budget(config.options, config.algo)
    if not budgets or len(set(budgets)) < len(budgets):
        raise ConfigError(f"--budgets {' '.join(f'{value:g}' for value in budgets)}: expected different numbers")
    flow = config.flow or (out / "flow" / seed_name(config.seed)).absolute()
    jobs = []
    for budget in budgets:
        options = replace(config.options, budget=budget)
        with_budget = replace(config, options=options, flow=flow, flow_updates=0, validation=None)
        variant = Variant(config.algo, config.preset, suffix=f"budget={budget:g}")
        jobs.append(make_job(with_budget, variant, out / f"budget-{budget:g}" / seed_name(config.seed)))
    jobs[0].check_environment()
    if reason := missing(jobs[0]):
        raise DataError(reason)
    return jobs


def flow_job(config: RunConfig, out: Path) -> Job | None:
    """The job that trains the flow: for --flow-updates, by default as many as --steps. None if --flow names one."""
    if config.flow is not None:
        return None
    updates = config.flow_updates or config.steps
    place = out / "flow"
    # How many episodes are held out depends on how many there are.
    episodes = len(config.load(str(config.data)).episodes) if config.validation is None else 0
    stage = stage_config(replace(config, flow_updates=updates), place, episodes)
    return make_job(stage, Variant(METHOD), place / seed_name(config.seed))


def train(config: RunConfig, budgets: Sequence[float], out: Path, workers: int) -> list[Path]:
    """Train what is not done, the flow first, and return the run directories of the budgets."""
    jobs, flow = budget_jobs(config, budgets, out), flow_job(config, out)
    stages = [[flow], jobs] if flow else [jobs]
    for job in [job for stage in stages for job in stage]:
        job.state()  # a run with another configuration is an error before anything starts
    for stage in stages:
        if problems := run_all(stage, out, Request(workers)):
            raise RunError(". ".join(problems))
    return [job.directory for job in jobs]


def select_command(runs: Sequence[Path], episodes: int) -> str:
    """The command that chooses among the runs, for an environment that is there later."""
    return shlex.join(["fidec", "select", *map(str, runs), "--episodes", str(episodes), "--env"]) + " ID"
