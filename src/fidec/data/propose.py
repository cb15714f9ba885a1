"""Propose a mapping file for a table, by the names of its columns (`fidec data map`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from fidec.data.recordings import Recording, open_table
from fidec.data.tables import natural
from fidec.errors import DataError

# By the part of a name before its number: action_0, tau3, "cmd.x".
_ACTION = r"(action|act|a|u|cmd|command|control|ctrl|tau|torque|target)s?([._\[ -].*|\d+\]?)?"
_SINGLE = {
    "episode": r"(episode|ep|traj|trajectory|demo|run|rollout)([._ ]?(index|id|number|idx))?",
    "time": r"(log[._])?(t|time|stamp|timestamp|seconds)([._ ](s|ns|us|ms|stamp))?",
    "reward": r"(next[._])?(reward|rew|r)",
    "success": r"(next[._]|is[._])?(success|succeeded|solved)",
    "terminal": r"(next[._]|is[._])?(terminal|terminated|done)s?",
    "truncation": r"(next[._]|is[._])?(truncat(ed|ion)|timeout)s?",
}
_COUNTERS = r"(index|frame([._]?(index|id))?|step|row|unnamed: 0|)"
_NUMBERS = ("int", "uint", "float", "double", "halffloat", "bool", "list", "fixed_size_list", "large_list")


def propose(names: Mapping[str, str]) -> dict[str, list[str]]:
    """The columns for each key of a mapping file. What is neither a key nor an action is observed."""
    found: dict[str, list[str]] = {"observation": [], "action": []}
    for name in sorted(names, key=natural):
        low = name.lower().strip().lstrip("/")
        key = next((key for key, pattern in _SINGLE.items() if re.fullmatch(pattern, low)), None)
        if key is not None and key not in found:
            found[key] = [name]
        elif re.fullmatch(_ACTION, low):
            found["action"].append(name)
        elif not re.fullmatch(_COUNTERS, low) and ".header." not in low and names[name].startswith(_NUMBERS):
            found["observation"].append(name)
    if "reward" in found:
        found.pop("success", None)  # rewards have one source
    return found


def proposal(files: list[Path], out: Path) -> str:
    """A mapping file for these tables, with a comment for what has to be checked."""
    first = open_table(files[0])
    names = first.types
    for other in files[1:]:
        if set(open_table(other).types) != set(names):
            raise DataError(f"{other} has other columns than {files[0]}: map them one by one, or rename columns")
    root = out.absolute().parent
    paths = [file.absolute() for file in files]
    if outside := [path for path in paths if not path.is_relative_to(root)]:
        raise DataError(f"{outside[0]} is not below {root}, the directory of {out.name}: choose another --out")
    found = propose(names)
    clock = []
    if isinstance(first, Recording) and first.topics:
        own = [topic for topic in first.topics if found["action"] and found["action"][0].startswith(f"{topic}.")]
        chosen = max(own, key=len) if own else first.topics[0]
        clock = [f"clock = {json.dumps(chosen)}  # its messages are the rows; other topics hold their last value"]
    lines = [
        "# Which columns are what. Check every line: it was proposed by the names of the columns.",
        f"files = {_list([str(path.relative_to(root)) for path in paths])}",
        f"observation = {_list(found.pop('observation'))}",
        f"action = {_list(found.pop('action'))}",
        *(f"{key} = {json.dumps(columns[0])}" for key, columns in found.items()),
        *clock,
        *(['# episode = "..."  # without it each file is an episode'] if "episode" not in found else []),
        *(
            ['# reward = "..."  # or success, or reward_function; without it train bc or flow_bc']
            if not {"reward", "success"} & found.keys()
            else []
        ),
        "# action_low = [-1.0]  # the bounds of the actions, if they are not in [-1, 1]",
        "# action_high = [1.0]",
        "",
        "# All columns:",
        *(f"#   {json.dumps(name)}  {kind}" for name, kind in names.items()),
    ]
    return "\n".join(lines) + "\n"


def _list(values: list[str]) -> str:
    return "[" + ", ".join(json.dumps(value) for value in values) + "]"
