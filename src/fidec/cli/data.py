"""`fidec data make | get | list | show | check | convert | map`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fidec.cli.parsing import print_json, print_table, read_settings, subcommands
from fidec.executors import EXECUTORS, Request

if TYPE_CHECKING:
    from fidec.data.dataset import OfflineDataset


@dataclass(frozen=True)
class MakeArgs:
    """Make an OGBench data set with OGBench's scripted oracles, in OGBench's own layout.

    The result depends on the seed alone, not on --workers. After an interruption the same command continues; data
    that exists already is not made twice.

    Ants need an expert that leads them through the maze. If there is none, it is trained first (17 minutes on one
    core) and kept for later data.
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Data set (cube-single-play-v0) or task (cube-single-play-singletask-task2-v0)."""
    rows: int = 100_000
    """Training rows, rounded up to whole episodes; a validation file gets a tenth more."""
    workers: int = 0
    """Processes; 0 takes the number of cores."""
    on: str = "local"
    """Where the episodes are made: local, ray, slurm, or the executor of an installed package."""
    address: str | None = None
    """Address of a Ray cluster; by default one is started on this machine."""
    settings: tuple[str, ...] = ()
    """Other options of the engine as NAME=VALUE, on slurm those of sbatch."""
    seed: int = 0
    """Seed of the data."""
    data_dir: Path | None = None
    """Where to write; by default the cache directory."""
    expert: Path | None = None
    """Directory of a trained expert for ants; by default the one in the cache, or a new one."""
    overwrite: bool = False
    """Replace a file that was made with other settings."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True)
class GetArgs:
    """Download an OGBench or D4RL data set, or a LeRobot data set of the Hugging Face hub, into the cache directory.

    Several hosts are tried. After an interruption the same command continues. A file gets its name when it is
    complete and checked; its SHA-256 is recorded and checked at every use. The variables HTTPS_PROXY, HTTP_PROXY and
    NO_PROXY are honoured.
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ID")]
    """Data set (cube-single-play-v0), task (cube-single-play-singletask-task2-v0, antmaze-large-play-v2), or
    hf:OWNER/NAME of the hub, at its newest commit or at hf:OWNER/NAME@REVISION."""
    data_dir: Path | None = None
    """Where to write; by default the cache directory."""
    url: str | None = None
    """Download from this address instead: a directory with the files, or the file itself."""
    no_val: bool = False
    """Leave out OGBench's validation file. OGBench's own loader requires it; D4RL has none."""
    no_videos: bool = False
    """Leave out the videos of a LeRobot data set; its cameras cannot be read then."""


@dataclass(frozen=True)
class ListArgs:
    """List the data files of the cache directory, and the data sets that fidec can make."""

    data_dir: Path | None = None
    """Directory to list; by default the cache directory."""
    json: bool = False
    """Print as JSON."""


@dataclass(frozen=True)
class SourceArgs:
    """Describe a data set: shapes, ranges, episodes, rewards, hash."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """ogbench:ID, d4rl:ID, npz:PATH, hdf5:PATH, minari:ID, table:PATH, robomimic:PATH, lerobot:DIR, hf:ID, a task id,
    or the path of a data file. Cameras of a robot's data are named after it: lerobot:DIR?cameras=front&size=64x64.
    lerobot:DIR?holes=allow reads data with missing frames."""
    data_dir: Path | None = None
    """Directory of the data files; by default the cache directory."""
    action_low: tuple[float, ...] | None = None
    """Lowest actions, one number or one for each dimension, if the data does not store its bounds."""
    action_high: tuple[float, ...] | None = None
    """Highest actions."""
    json: bool = False
    """Print as JSON."""


@dataclass(frozen=True)
class ShowArgs(SourceArgs):
    """Describe a data set: shapes, ranges, episodes, rewards, hash."""

    page: Path | None = None
    """Also draw it as one HTML file, which needs no network: episodes, histograms, frames, findings."""


@dataclass(frozen=True)
class CheckArgs(SourceArgs):
    """Check a data set and explain the findings. The exit code is 1 if there is an error.

    What `fidec train` refuses is refused here too, by the same checks. The options are those of `fidec train`.
    """

    algo: str = "bc"
    """Method that will be trained. The default takes all data that can be trained on."""
    chunk: int = 1
    """Steps whose actions the policy chooses together."""
    delay: int = 0
    """Steps between an observation and the beginning of its action."""
    action_quantile: float | None = None
    """Measure each action dimension by the data's own range, from this quantile to its opposite."""


@dataclass(frozen=True)
class ConvertArgs(SourceArgs):
    """Write a data set in another format, read it again, and say what the format cannot hold.

    The content's hash before and after is printed. The two are equal if nothing was lost.
    """

    to: Literal["npz", "minari", "lerobot"] = "npz"
    """Format: a NumPy archive, which holds everything; Minari's HDF5 layout; or LeRobotDataset v3.0."""
    out: Path | None = None
    """The file (npz) or the directory to write. Minari needs a name with a version, such as mine-v0."""
    fps: int = 10
    """Frames a second, for LeRobot."""
    overwrite: bool = False
    """Replace what is there."""


@dataclass(frozen=True)
class MapArgs:
    """Propose a mapping file for CSV, Parquet or MCAP files: which columns are observation, action, reward, episode.

    Check it, then use it as the source table:FILE.
    """

    tables: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TABLE...")]
    """CSV, Parquet or MCAP files with the same columns."""
    out: Path | None = None
    """The file to write; by default columns.toml in the directory of the first table."""
    overwrite: bool = False
    """Replace an existing file."""


def main(argv: list[str]) -> int:
    commands = {
        "make": (MakeArgs, _make, "make an OGBench data set with OGBench's scripted oracles"),
        "get": (GetArgs, _get, "download an official OGBench or D4RL data set, or one of the hub"),
        "list": (ListArgs, _list, "list the data files of the cache, and what can be made"),
        "show": (ShowArgs, _show, "describe a data set in numbers, or as a page"),
        "check": (CheckArgs, _check, "check a data set and explain the findings"),
        "convert": (ConvertArgs, _convert, "write a data set in another format"),
        "map": (MapArgs, _map, "propose a mapping file for CSV, Parquet or MCAP files"),
    }
    return subcommands("fidec data", commands, argv)


def _make(args: MakeArgs) -> int:
    from fidec.data.cache import data_dir
    from fidec.make import make_dataset

    directory, workers = data_dir(args.data_dir), args.workers or os.cpu_count() or 1
    executor, settings = EXECUTORS.get(args.on), read_settings(args.settings)
    request = Request(max(workers, 1), address=args.address, settings=settings, directory=directory)
    made = make_dataset(
        args.name,
        args.rows,
        directory=directory,
        seed=args.seed,
        workers=workers,
        open_pool=None if args.on == "local" else lambda: executor.open(request),
        overwrite=args.overwrite,
        expert=args.expert,
    )
    if args.json:
        print_json(asdict(made))
        return 0
    for split, path in made.paths.items():
        print(f"{path}: {made.rows[split]} rows, {made.episodes[split]} episodes ({split})")
    print("exists already" if made.reused else f"made in {made.seconds:.0f} s")
    return 0


def _get(args: GetArgs) -> int:
    from fidec.data.download import download
    from fidec.data.sources.hf import download_hub
    from fidec.errors import ConfigError

    if args.name.startswith("hf:"):
        if args.url is not None:
            raise ConfigError("--url is for OGBench and D4RL; another address of the hub is in HF_ENDPOINT")
        print(download_hub(args.name.removeprefix("hf:"), args.data_dir, videos=not args.no_videos))
        return 0
    for path in download(args.name, args.data_dir, url=args.url, val=not args.no_val):
        print(path)
    return 0


def _list(args: ListArgs) -> int:
    from fidec.data.cache import data_dir
    from fidec.data.summary import list_cache
    from fidec.make.recipes import RECIPES

    files = list_cache(args.data_dir)
    if args.json:
        print_json({"files": [asdict(file) for file in files], "can_make": list(RECIPES)})
        return 0
    print(f"cache directory: {data_dir(args.data_dir)}")
    if files:
        print_table(
            ("name", "rows", "MB", "origin", "sha256"),
            [
                (
                    f.name,
                    f.rows or "?",
                    f"{f.bytes / 1e6:.1f}",
                    f.problem or f.origin or "?",
                    (f.sha256 or "?")[:12],
                )
                for f in files
            ],
        )
    else:
        print("no data files yet")
    print(f"fidec data make can make: {', '.join(RECIPES)}")
    return 0


def _map(args: MapArgs) -> int:
    from fidec.data.sources.table import read_schema, suggested_file
    from fidec.errors import ConfigError
    from fidec.store import files

    if not args.tables:
        raise ConfigError("name a table, a CSV or Parquet file")
    out = args.out or args.tables[0].parent / "columns.toml"
    if out.exists() and not args.overwrite:
        raise ConfigError(f"{out} exists. Give --overwrite to replace it, or another --out")
    text = suggested_file(list(args.tables), out)
    with files.writing(out, "the mapping file"):
        files.atomic_write(out, text)
    print(text, end="")
    try:
        read_schema(out)
        print(f"{out}: check it, then `fidec data check table:{out}`", file=sys.stderr)
    except ConfigError as error:  # a key for which no column was found
        print(error, file=sys.stderr)
    return 0


def _load(args: SourceArgs) -> OfflineDataset:
    from fidec.data.source import load_dataset

    bounds = {"action_low": args.action_low, "action_high": args.action_high}
    return load_dataset(args.source, cache_dir=args.data_dir, **bounds)


def _show(args: ShowArgs) -> int:
    from fidec.data.summary import describe_dataset, description_text

    dataset = _load(args)
    facts = describe_dataset(dataset)
    if args.json:
        print_json(facts)
    else:
        print(description_text(facts))
    if args.page is not None:
        from fidec.report.dataset import write_data_page

        print(f"page: {write_data_page(dataset, args.page)}", file=sys.stderr)
    return 0


def _check(args: CheckArgs) -> int:
    from fidec.data.check import check_dataset
    from fidec.train.config import RunConfig
    from fidec.train.starting import seen_by_run

    seen = {name: getattr(args, name) for name in ("algo", "chunk", "delay", "action_quantile")}
    report = check_dataset(seen_by_run(RunConfig(**seen), _load(args)))
    if args.json:
        print_json(report.to_json())
    else:
        print(report.to_text())
    if report.worst == "error":
        print("fidec data check: the data set has errors", file=sys.stderr)
        return 1
    return 0


def _convert(args: ConvertArgs) -> int:
    from fidec.data.convert import convert
    from fidec.errors import ConfigError

    if args.out is None:
        raise ConfigError("give --out, the file or the directory to write")
    made = convert(_load(args), args.to, args.out, overwrite=args.overwrite, fps=args.fps)
    if args.json:
        print_json({**asdict(made), "path": str(made.path)})
        return 0
    print(f"{made.path}: load it as {made.source}")
    print(f"sha256 before   {made.sha256_before}\nsha256 after    {made.sha256_after}")
    for kind, sentences in (("lost", made.lost), ("note", made.notes)):
        for sentence in sentences:
            print(f"{kind:<15} {sentence}")
    if not made.lost:
        print("nothing was lost")
    return 0
