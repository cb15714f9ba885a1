"""`fidec train`."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from fidec import algos, tasks
from fidec.cli.algos import meanings
from fidec.cli.parsing import import_from_here, interval, options_of, parse, print_json
from fidec.errors import ConfigError, naming
from fidec.register import unknown
from fidec.tasks import describe
from fidec.train.config import OnlineConfig, RunConfig
from fidec.train.configfile import REPLACED, ConfigFile
from fidec.train.protocol import parts_of, protocol_values, published_options
from fidec.train.resolve import resolve


@dataclass(frozen=True)
class Processes:
    """Several processes that train one run."""

    coordinator: str | None = None
    """Train one run with several processes, on one host or on several. HOST:PORT is a free port of process 0's host;
    auto asks the batch system (Slurm, Open MPI, Kubernetes). All processes get the same command. Process 0 reads the
    data and writes the run directory."""
    process: int | None = None
    """With --coordinator HOST:PORT: the number of this process, from 0 on."""
    processes: int | None = None
    """With --coordinator HOST:PORT: how many there are. The batch is split over all their --devices."""


@dataclass(frozen=True)
class TrainArgs(Processes, RunConfig):
    """Train a method on a data set and write a run directory.

    A --task of the benchmark has data, an environment, a protocol and published options (`fidec tasks ID` shows
    them). Your own --data needs no environment; with an --env, any Gymnasium id, the policy is evaluated in it. The
    options --algo.* belong to the chosen method; their defaults are those of its --preset and of the task. With
    --online-steps training continues in the environment. `fidec train --resume DIR` continues an interrupted run.
    With --seeds several runs are trained by one program.
    """

    seeds: tuple[int, ...] = ()
    """Train these seeds together, each in a run directory of its own: OUT/seed000 and so on. They share one compiled
    program, the data in memory and the environments of evaluations. Each run can be resumed alone."""

    config: Path | None = None
    """File with options of this command: TOML, or the config.json of a run. Options of the command line replace
    those of the file, which replace those of the preset and the task."""
    overwrite: bool = False
    """Replace the run that the output directory holds."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True, kw_only=True)
class ResumeArgs(Processes):
    """Continue a run, bit for bit as if it had never stopped; with --online-steps in its environment."""

    resume: tuple[Path, ...]
    """The run directory, or several of runs that differ only in their seeds, which are then trained together. A URL
    (s3://bucket/runs/x) is continued on this machine and mirrored; another machine that trains the run stops."""
    steps: int | None = None
    """Train up to this many offline steps instead of the run's own number."""
    env: str | None = None
    """Gymnasium id of an environment, for a run that has not used one yet."""
    online_steps: int | None = None
    """Train online, or online for longer: up to this many steps in the environment."""
    online: OnlineConfig = dataclasses.field(default_factory=OnlineConfig)
    """The online phase of a run that has none yet. Once it has begun only --online.max-failures can change."""
    devices: int | None = None
    """Continue one run on this many devices instead of the number before: equal to an uninterrupted run up to
    rounding."""
    json: bool = False
    """Print the result as JSON."""


def _peek(argv: list[str], name: str) -> str | None:
    """The value of an option before the parser knows all options: they depend on it."""
    for i, word in enumerate(argv):
        option, _, value = word.partition("=")
        if option.replace("_", "-") == name:
            return value or (argv[i + 1] if i + 1 < len(argv) else None)
    return None


def main(argv: list[str]) -> int:
    if any(word == "--resume" or word.startswith("--resume=") for word in argv):
        resumed = parse(ResumeArgs, argv, "fidec train", explain=_kept)
        return _in_processes(resumed, lambda: _resume(resumed))
    config, args = read_args(argv, "fidec train")
    if args.seeds and _peek(argv, "--seed") is not None:
        raise ConfigError("both --seed and --seeds are given: name one seed, or several")
    return _in_processes(args, lambda: _train(config, args.seeds, overwrite=args.overwrite, as_json=args.json))


def _in_processes(args: Processes, train: Callable[[], int]) -> int:
    """Train, if this is the only process or the first of several; else follow the first."""
    from fidec.train import hosts

    if hosts.join(args.coordinator, args.process, args.processes):
        hosts.follow()
        sys.stderr.flush()
        # JAX would say goodbye to process 0, and would end this process with an error if that has ended already.
        os._exit(0)
    with hosts.leading():
        return train()


def read_args(argv: list[str], program: str) -> tuple[RunConfig, TrainArgs]:
    """The configuration that options of `fidec train` ask for, and all options."""
    file = _peek(argv, "--config")
    given = (
        ConfigFile.read(Path(file), {name for name in REPLACED if _peek(argv, f"--{name}")}) if file else ConfigFile()
    )

    def find(name: str, default: Any) -> Any:
        return _peek(argv, f"--{name.replace('_', '-')}") or given.values.get(name) or default

    algo, preset, task = find("algo", "fidec"), find("preset", "recommended"), find("task", None)
    setting = "online" if find("online_steps", "0") != "0" else "offline"
    named = {name: value for name in algos.get(algo).parts if (value := _peek(argv, f"--algo.{name}")) is not None}
    options = given.resolve_options(algo, preset, task, setting, **named)
    # Without offline steps of RLPD's protocol the online ones must be there already for the defaults to be valid.
    first = {**protocol_values(task, algo, setting), "online_steps": int(setting == "online")}
    with naming(file) if file else nullcontext():
        default = _with_options(options, algos.get(algo))(**{**first, **given.values})
    explain = partial(_of_other_methods, algos.get(algo), named)
    args = parse(type(default), argv, program, default=default, explain=explain)
    if args.env_name is None and args.eval_interval:
        _check_not_given(argv, "--eval-interval", "--eval-episodes", "--eval-seeds")
    fields = {f.name: getattr(args, f.name) for f in dataclasses.fields(RunConfig)}
    return RunConfig(**fields), args


def _of_other_methods(method: algos.Method, parts: dict[str, str], option: str) -> ConfigError | None:
    """The error for an --algo.* option that the method does not have."""
    name = option.removeprefix("--algo.").replace("-", "_")
    if not option.startswith("--algo.") or name in RunConfig.__dataclass_fields__:
        return None
    return method.unknown_option(name, parts)


def _kept(option: str) -> ConfigError:
    """The error for an option that a resumed run does not have."""
    free = dict.fromkeys(re.sub(r"\..*", ".*", name) for name in options_of(ResumeArgs))
    advice = f"The run keeps its options; a new value needs a new run. These may be given: {', '.join(free)}"
    return unknown("option of a resumed run", option, options_of(ResumeArgs), advice)


def _check_not_given(argv: list[str], *names: str) -> None:
    """Raise if one of these options is given to a run without an environment."""
    for name in names:
        if _peek(argv, name) is not None:
            raise ConfigError(
                f"{name} is given, but nothing would be evaluated: there is no environment. Name a --task, or a "
                f"Gymnasium id with --env, or omit {name}"
            )


def _with_options(options: Any, method: algos.Method) -> Any:
    """The arguments with the chosen method's own options as --algo.*."""
    parts = method.parts_of(vars(options)).values()
    if parts:  # tyro reads what options mean from the source of a class, which this one does not have
        lines = [f"    {name}: {meaning}" for name, meaning in meanings(type(options), *parts).items()]
        type(options).__doc__ = "\n".join([f"{method.config.__doc__}\n\nAttributes:", *lines])
    # Help shows the values of a switch here, because its default depends on the preset.
    annotation = Annotated[type(options), tyro.conf.arg(name="algo"), tyro.conf.FlagConversionOff]
    field = ("options", annotation, dataclasses.field(default=options))
    made = dataclasses.make_dataclass("TrainArgs", [field], bases=(TrainArgs,), frozen=True)
    made.__doc__ = TrainArgs.__doc__
    return made


def _train(config: RunConfig, seeds: tuple[int, ...], *, overwrite: bool, as_json: bool) -> int:
    from fidec.train.run import train, train_seeds

    import_from_here()
    if config.task is None and config.data is None:
        raise ConfigError(
            "there is no data: name a --task (`fidec tasks` lists them), or a data source with --data, and an "
            "environment with --env to evaluate in it"
        )
    print(*_picked(resolve(config)), sep="\n", file=sys.stderr)
    if seeds:
        return _report_all(train_seeds(config, seeds, overwrite=overwrite), as_json)
    return _report(train(config, overwrite=overwrite), as_json)


def _picked(config: RunConfig) -> list[str]:
    """What the run starts from, and where that was published."""
    title = f"{config.algo}, preset {config.preset}"
    if config.task is None:
        return [title if config.env is None else f"{title}, on {config.env}"]
    protocol = tasks.protocol_of(config.task, config.algo, config.setting)
    choices = [
        (_lengths(config), _lengths(protocol), protocol.name),
        (_evaluation(config), _evaluation(protocol), protocol.name),
    ]
    published = published_options(config.algo, config.preset, config.task, config.setting, **parts_of(config))
    for name, setting in published.items():
        choices.append((f"{name} {getattr(config.options, name)}", f"{name} {setting.value}", setting.source))
    rows: dict[str, list[str]] = {}
    for chosen, published, source in choices:
        rows.setdefault(source if chosen == published else f"given; {published} in {source}", []).append(chosen)
    from fidec.envs.factory import find_task  # imports gymnasium, which --help does not need

    task = tasks.find(config.task, config.setting)
    if task is not None and config.algo in task.paper:
        kind = "percent success" if protocol.score == "success" else "normalised score"
        rows[f"FiDec paper, {kind}"] = [f"reported {describe.number(task.paper[config.algo])}"]
    width = max(len(", ".join(row)) for row in rows.values())
    lines = [f"  {', '.join(row):{width}}  {source}" for source, row in rows.items()]
    note = find_task(config.task).note
    return [f"{title}, on {config.task}", *lines, *([f"  {note}"] if note else [])]


def _lengths(plan: RunConfig | tasks.Protocol) -> str:
    return f"steps {plan.steps:,}" + (f" + {plan.online_steps:,} online" if plan.online_steps else "")


def _evaluation(plan: RunConfig | tasks.Protocol) -> str:
    if not plan.eval_interval:
        return "no evaluation"
    return f"evaluation every {plan.eval_interval:,} ({plan.eval_episodes} episodes)"


def _resume(args: ResumeArgs) -> int:
    from fidec.train.run import resume, resume_all

    import_from_here()
    how: dict[str, Any] = {"env": args.env, "steps": args.steps}
    if len(args.resume) > 1:
        if args.online_steps is not None:
            raise ConfigError("--online-steps is for one run: resume the others one by one")
        if args.devices is not None:
            raise ConfigError("--devices is for one run: several are spread over all devices")
        return _report_all(resume_all(args.resume, **how), args.json)
    if not args.resume:
        raise ConfigError("--resume: expected the directory of a run")
    result = resume(args.resume[0], online_steps=args.online_steps, online=args.online, devices=args.devices, **how)
    return _report(result, args.json)


def _report(result: Any, as_json: bool) -> int:
    print_json(_as_json(result)) if as_json else _print(result)
    return 0


def _report_all(results: list[Any], as_json: bool) -> int:
    """What single runs print, and how to compare them."""
    if as_json:
        print_json([_as_json(result) for result in results])
        return 0
    for result in results:
        _print(result)
    if len(results) > 1 and any(result.evaluation for result in results):
        print(f"all together: fidec compare {' '.join(str(result.directory) for result in results)}")
    return 0


def _as_json(result: Any) -> dict[str, Any]:
    url = {} if result.url is None else {"url": result.url}
    return {"directory": str(result.directory), "step": result.step, "evaluation": result.evaluation or None, **url}


def _print(result: Any) -> None:
    from fidec.audit.text import end_of_training

    print(f"{result.directory}: {result.step} steps")
    for line in _means(result.evaluation) if result.evaluation else ():
        print(line)
    if (region := end_of_training(result.directory)) is not None:
        print(region)
    print(f"policy: {result.policy}")
    if result.url is not None:
        print(f"mirrored to {result.url}")


def _means(evaluation: dict[str, Any]) -> list[str]:
    """The last evaluation: the success or, without it, the return; a score that is neither; the failed episodes."""
    summary = {name.removeprefix("evaluation/"): value for name, value in evaluation.items()}
    success, return_, score = (summary[name] for name in ("success", "return", "score"))
    lines = []
    if return_ is not None:
        name = "return" if success is None else "success"
        lines.append(f"{name} {interval(summary, name)} over {_episodes(summary['n'])}")
    if score not in (None, return_, None if success is None else 100.0 * success):
        lines.append(f"score {score:.1f}, return {interval(summary, 'return')}")
    if summary["n_failed"]:
        verb = "is" if summary["n_failed"] == 1 else "are"
        lines.append(f"{_episodes(summary['n_failed'])} failed and {verb} not in the averages")
    return lines


def _episodes(count: int) -> str:
    return "1 episode" if count == 1 else f"{count} episodes"
