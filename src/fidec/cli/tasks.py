"""`fidec tasks [ID]`."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from fidec import tasks
from fidec.cli.output import parse, print_json, print_table
from fidec.errors import ConfigError, EnvError
from fidec.make.recipes import RECIPES, dataset_name
from fidec.tasks import Task, describe


@dataclass(frozen=True)
class TasksArgs:
    """List the benchmark's 87 tasks, or show what is known of one.

    Of one: its environment, its protocol, what was published for each method and by whom, and the number that the
    FiDec paper reports.
    """

    task: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ID]")] = None
    """A task id; ...-singletask-v0 means its family's default task."""
    suite: str | None = None
    """Only the tasks of a suite (`fidec suite list`), or of ogbench or d4rl."""
    family: str | None = None
    """Only ids that begin with this, such as cube."""
    all: bool = False
    """Also the tasks of the installed OGBench that are not in the benchmark."""
    json: bool = False
    """Print as JSON."""


def main(argv: list[str]) -> int:
    args = parse(TasksArgs, argv, "fidec tasks")
    if args.task is not None:
        return _show(args.task, args.json)
    in_suite = _filter(args.suite)
    rows = [_row(task) for task in tasks.TASKS if in_suite(task)]
    rows += _unlisted(args.suite, rows)
    if args.all and args.suite in (None, "ogbench"):
        rows += _others()
    rows = [row for row in rows if not args.family or row["id"].startswith(args.family)]
    if args.json:
        print_json(rows)
        return 0
    columns = ("id", "setting", "suite", "steps", "score", "fidec", "fql", "data", "category")
    print_table(columns, [_cells(row) for row in rows])
    print(
        "\nfidec, fql: what the FiDec paper reports, in percent. `fidec tasks ID` has all methods and their settings."
    )
    if not args.all:
        print("OGBench has further tasks, without published numbers: `fidec tasks --all`.")
    return 0


def _filter(suite: str | None) -> Callable[[Task], bool]:
    if suite is None:
        return lambda task: True
    if suite in ("ogbench", "d4rl"):
        return lambda task: task.suite == suite
    from fidec.bench.suites import SUITES

    if suite not in SUITES:
        known = ["ogbench", "d4rl", *SUITES]
        near = difflib.get_close_matches(suite, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"there is no suite {suite!r}.{hint} Known: {', '.join(known)}")
    found = SUITES[suite]
    return lambda task: task.setting == found.setting and not {task.id, task.alias_of}.isdisjoint(found.tasks)


def _unlisted(suite: str | None, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A suite's tasks that the paper's tables do not have in its setting."""
    from fidec.bench.suites import SUITES

    if suite not in SUITES:
        return []
    listed = {name for row in rows for name in (row["id"], row["alias_of"])}
    facts = {"setting": SUITES[suite].setting, "suite": "ogbench", "category": None, "alias_of": None}
    missing = [name for name in SUITES[suite].tasks if name not in listed]
    return [{"id": name, **facts, **_plan(name, facts["setting"]), "paper": {}} for name in missing]


# --- the list ---------------------------------------------------------------------------------------------------


def _row(task: Task) -> dict[str, Any]:
    facts = {"id": task.id, "setting": task.setting, "suite": task.suite, "category": task.category}
    paper = {method: describe.plain(number) for method, number in task.paper.items()}
    return {**facts, "alias_of": task.alias_of, **_plan(task.id, task.setting), "paper": paper}


def _others() -> list[dict[str, Any]]:
    """The tasks that the installed OGBench has beside the benchmark's."""
    from fidec.envs.make import known_tasks

    facts = {"setting": "offline", "suite": "ogbench", "category": None, "alias_of": None}
    ids = [info.id for info in known_tasks() if tasks.find(info.id) is None]
    return [{"id": name, **facts, **_plan(name), "paper": {}} for name in ids]


def _plan(name: str, setting: str = "offline") -> dict[str, Any]:
    protocol = dataclasses.asdict(tasks.protocol_of(name, "fidec", setting))
    return {"protocol": protocol.pop("name"), **protocol, "data_can_be_made": _can_be_made(name)}


def _can_be_made(task: str) -> bool:
    return dataset_name(task) in RECIPES


def _cells(row: dict[str, Any]) -> list[str]:
    """Without blanks inside a cell, but for the last: `awk` can count them."""
    steps = describe.short(row["steps"]) + (f"+{describe.short(row['online_steps'])}" if row["online_steps"] else "")
    task = tasks.find(row["id"], row["setting"])
    numbers = [describe.number(task.paper[method] if task else None).replace(" ", "") for method in ("fidec", "fql")]
    data = "make" if row["data_can_be_made"] else "download"
    return [row["id"], row["setting"], row["suite"], steps, row["score"], *numbers, data, row["category"] or "-"]


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
        print(f"\n{title}: what the FiDec paper reports, and the settings that were published")
        print_table(("method", "reported", "option", "value", "source"), describe.option_rows(row))
    if not rows:
        family = tasks.family_of(name)
        settings = f" The settings of {family.name} apply, as published for its other tasks." if family else ""
        print(f"\nNot among the benchmark's tasks: there are no published numbers for it.{settings}")
    return 0


def _environment(name: str, rows: list[Task]) -> dict[str, Any]:
    from fidec.envs.make import find_task

    try:
        info = find_task(name)
        facts = {**dataclasses.asdict(info), "dataset": info.dataset}
    except EnvError as error:  # what was published is known all the same
        if not rows:
            raise
        facts = {"id": rows[0].id, "suite": rows[0].suite, "horizon": rows[0].horizon, "note": str(error)}
    if rows:
        row = rows[0]
        facts |= {
            "category": row.category,
            "observation_shape": row.observation_shape,
            "action_dim": row.action_dim,
            "data_transitions": row.data_transitions,
            "reward_shift": row.reward_shift,
        }
    facts["data_can_be_made"] = _can_be_made(facts["id"])
    facts["note"] = facts.pop("note") or "-"  # last, for it is a sentence
    return facts
