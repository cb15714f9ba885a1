"""Written runs of a suite, for tests of its table and curves. Nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fidec.bench.jobs import SuiteJob, jobs
from fidec.bench.suites import SMALL, SUITES, read_suite
from fidec.store.rundir import RunDirectory
from fidec.train.config import RunConfig
from fidec.train.resolve import resolve

SHA = "ab" * 32


def jobs_of(name: str, out: Path = Path("runs"), **keywords: Any) -> list[SuiteJob]:
    return jobs(SUITES.get(name), out=out, data_dir=None, **keywords)


def small_jobs(name: str, out: Path, *words: str, **keywords: Any) -> list[SuiteJob]:
    return jobs_of(name, out, scale=SMALL, words=words, **keywords)


def own_jobs(directory: Path, *names: str) -> list[SuiteJob]:
    """The jobs of a user's suite, own.toml: two methods and two seeds on tasks of their own."""
    tasks = ", ".join(f'{{ name = "{name}", env = "Own-v0", data = "npz:own.npz" }}' for name in names)
    path = directory / "own.toml"
    path.write_text(f'tasks = [{tasks}]\nmethods = ["bc", "fql"]\nseeds = [0, 1]\n[scale]\nsteps = 20\n')
    return jobs(read_suite(path), out=directory / "out", data_dir=None)


def write_run(
    job: SuiteJob,
    scores,
    sha256=SHA,
    file_sha256: str | None = SHA,
    regenerated: bool | None = True,
    unit: str = "success in percent",
    **changes,
) -> None:
    """A finished run with a score for each evaluation of its plan. `changes` replaces fields of its configuration."""
    plan = job.plan
    names = ("steps", "online_steps", "batch_size", "eval_interval", "eval_episodes")
    config = RunConfig(
        task=job.suite_task.id,
        env=job.suite_task.env,
        algo=job.variant.method,
        preset=job.variant.preset,
        seed=job.seed,
        data=job.data(),
        options=job.config.options,
        **{**job.variant.run, **{name: getattr(plan, name) for name in names}},
    )
    info = {"file": "data/some-play-v0.npz", "regenerated": regenerated, "file_sha256": file_sha256}
    facts = {
        "name": job.task,
        "source": f"ogbench:{job.task}",
        "transitions": 100_000,
        "sha256": sha256,
        "info": info,
    }
    rows = []
    for step, score in zip(plan.evaluations, scores, strict=True):
        success = score / 100 if score is not None and unit == "success in percent" else None
        returned = score if unit == "return" else -1234.5
        rows.append({"step": step, "evaluation/success": success, "evaluation/return": returned})
        rows[-1] |= {"evaluation/score": score, "evaluation/n": plan.eval_episodes}
    rates = [(500, 100.0)] * bool(plan.steps) + [(plan.total, 20.0)] * bool(plan.online_steps)
    times = [{"step": 1, "time/compile": 10.0}, {"step": 2_500, "time/evaluation": 5.0}]
    times += [{"step": step, "time/steps_per_second": rate} for step, rate in rates]
    with RunDirectory.create(job.directory) as directory:
        directory.write_config({**resolve(config).to_json(), **changes})
        directory.write_environment({"dataset": facts})
        write_rows(directory.path, eval=rows, time=times)
        directory.write_status("done", plan.total)


def write_rows(directory: Path, **logs: list[dict[str, Any]]) -> None:
    for name, rows in logs.items():
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
