"""`fidec tasks [ID]`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from fidec import tasks
from fidec.cli.parsing import parse, print_json, print_table
from fidec.data.cache import dataset_name
from fidec.errors import ConfigError, EnvError
from fidec.make.recipes import RECIPES
from fidec.tasks import Task, describe


@dataclass(frozen=True)
class TasksArgs:
    """List the 87 tasks of the paper's tables, or show one task.

    The page of one task has its environment, its protocol, the published options of each method with their sources,
    and the numbers that the FiDec paper reports.
    """

    task: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ID]")] = None
    """A task id; ...-singletask-v0 means the default task of its family."""
    benchmark: Literal["ogbench", "d4rl"] | None = None
    """Only the tasks of this benchmark."""
    suite: str | None = None
    """Only the tasks of this suite; `fidec suite list` lists the suites."""
    family: str | None = None
    """Only ids that begin with this, such as cube."""
    all: bool = False
    """Also list the tasks of the installed OGBench that the paper does not have."""
    json: bool = False
    """Print as JSON."""


def main(argv: list[str]) -> int:
    args = parse(TasksArgs, argv, "fidec tasks")
    if args.task is not None:
        return _show(args.task, args.json)
    rows = _suite_rows(args.suite) if args.suite else [_row(task) for task in tasks.TASKS]
    rows += _other_rows() if args.all and not args.suite else []
    rows = [
        row
        for row in rows
        if args.benchmark in (None, row["benchmark"]) and (not args.family or row["id"].startswith(args.family))
    ]
    if args.json:
        print_json(rows)
        return 0
    columns = ("id", "setting", "benchmark", "steps", "score", "fidec", "fql", "data", "category")
    print_table(columns, [_cells(row) for row in rows])
    print("\nfidec, fql: what the FiDec paper reports, in percent. `fidec tasks ID` shows all methods.")
    if not args.all:
        print("OGBench has more tasks, without published numbers: `fidec tasks --all`.")
    return 0


# --- the list ---------------------------------------------------------------------------------------------------


def _row(task: Task) -> dict[str, Any]:
    names = ("id", "setting", "benchmark", "category", "alias_of")
    paper = {method: describe.to_json(number) for method, number in task.paper.items()}
    return {**{name: getattr(task, name) for name in names}, **_protocol(task.id, task.setting), "paper": paper}


def _unpublished_row(name: str, setting: str = "offline") -> dict[str, Any]:
    """A task that is not in the paper's table of this setting."""
    family = tasks.family_of(name)
    benchmark = family.benchmark if family else "ogbench"
    facts = {"id": name, "setting": setting, "benchmark": benchmark, "category": None, "alias_of": None}
    return {**facts, **_protocol(name, setting), "paper": {}}


def _suite_rows(name: str) -> list[dict[str, Any]]:
    from fidec.bench.suites import find_suite

    suite = find_suite(name)
    rows = [_row(task) for task in tasks.TASKS if task.setting == suite.setting]
    rows = [row for row in rows if not {row["id"], row["alias_of"]}.isdisjoint(suite.ids)]
    listed = {name for row in rows for name in (row["id"], row["alias_of"])}
    return rows + [_unpublished_row(name, suite.setting) for name in suite.ids if name not in listed]


def _other_rows() -> list[dict[str, Any]]:
    """The tasks of the installed environment families that the paper does not have."""
    from fidec.envs.factory import known_tasks

    others = [info for info in known_tasks()[0] if tasks.find(info.id) is None]
    return [_unpublished_row(info.id) | {"benchmark": info.family} for info in others]


def _protocol(name: str, setting: str) -> dict[str, Any]:
    protocol = dataclasses.asdict(tasks.protocol_of(name, "fidec", setting))
    return {"protocol": protocol.pop("name"), **protocol, "data_command": _data_command(name)}


def _data_command(task: str) -> str:
    """The command that provides a task's data: makes it here, or downloads it."""
    name = dataset_name(task)
    return f"fidec data {'make' if name in RECIPES else 'get'} {name}"


def _cells(row: dict[str, Any]) -> list[str]:
    """No cell but the last has a blank in it, so that `awk` can count the columns."""
    steps = describe.short(row["steps"]) + (f"+{describe.short(row['online_steps'])}" if row["online_steps"] else "")
    task = tasks.find(row["id"], row["setting"])
    numbers = [describe.number(task.paper[method] if task else None).replace(" ", "") for method in ("fidec", "fql")]
    data = row["data_command"].split()[2]
    return [row["id"], row["setting"], row["benchmark"], steps, row["score"], *numbers, data, row["category"] or "-"]


# --- one task ---------------------------------------------------------------------------------------------------


def _show(name: str, as_json: bool) -> int:
    rows = [row for setting in ("offline", "online") if (row := tasks.find(name, setting)) is not None]
    facts = _environment(name, rows)
    if as_json:
        print_json({**facts, "settings": {row.setting: describe.published(row) for row in rows}})
        return 0
    print_table(("what", "value"), facts.items())
    for row in rows:
        title = "offline" if row.setting == "offline" else "offline to online"
        print(f"\n{title}: protocol")
        print_table(("methods", "steps", "evaluation", "score"), describe.protocol_rows(row))
        print(f"\n{title}: what the FiDec paper reports, and the published options")
        print_table(("method", "reported", "option", "value", "source"), describe.option_rows(row))
    if not rows:
        family = tasks.family_of(name)
        options = f" The published options of {family.name} apply." if family else ""
        print(f"\nThis task is not in the paper's tables: there are no published numbers for it.{options}")
    return 0


def _environment(name: str, rows: list[Task]) -> dict[str, Any]:
    from fidec.envs.factory import find_task

    try:
        info = find_task(name)
        facts = dataclasses.asdict(info)
    except (ConfigError, EnvError) as error:  # the environment is not installed; the published facts are still known
        if not rows:
            raise
        facts = {"id": rows[0].id, "family": rows[0].benchmark, "horizon": rows[0].horizon, "note": str(error)}
    names = ("category", "observation_shape", "action_dim", "data_transitions", "reward_shift")
    facts |= {name: getattr(rows[0], name) for name in names} if rows else {}
    note = facts.pop("note") or "-"
    return {**facts, "data_command": _data_command(facts["id"]), "note": note}
