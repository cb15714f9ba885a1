"""The register of methods, and a plug-in from another package."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

import numpy as np
import pytest

from fidec import algos, cli
from fidec.algos.common.base import METHODS, Method
from fidec.algos.constraints import Quadratic
from fidec.algos.fidec import METHOD, FiDecConfig
from fidec.bench.suites import SUITES
from fidec.cli.algos import describe, meanings
from fidec.envs.factory import find_task
from fidec.envs.families import FAMILIES, EnvOptions
from fidec.errors import ConfigError
from fidec.register import Register
from fidec.train.config import OnlineConfig, RunConfig
from fidec.types import Spec


@pytest.mark.parametrize(("wrong", "expected"), [("fidek", "did you mean fidec"), ("xyz", "Known: ")])
def test_an_unknown_name_is_answered_with_help(wrong, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        algos.get(wrong)
    assert wrong in str(caught.value)
    assert ", ".join(algos.names()) in str(caught.value)


def test_a_preset_is_the_defaults_with_some_fields_changed():
    fidec = algos.get("fidec")
    assert fidec.configure() == fidec.configure("recommended")
    assert dataclasses.asdict(FiDecConfig()).items() <= dataclasses.asdict(fidec.configure()).items()
    assert fidec.configure("paper", budget=0.5).budget == 0.5
    for name in algos.names():
        for preset, fields in algos.get(name).presets.items():
            config = algos.get(name).configure(preset)
            assert {option: getattr(config, option) for option in fields} == fields


def test_the_options_of_a_preset_suit_the_constraint_that_is_given():
    """Those that it does not have are left out, and a budget of another unit."""
    configure = algos.get("fidec").configure
    isotropic, stein = configure("released", constraint="isotropic"), configure("nats", constraint="stein")
    assert (isotropic.t_eps, isotropic.damping, isotropic.clip_scope) == (0.9, 1e-3, "global")
    assert not hasattr(isotropic, "samples")
    assert stein.trust_region() == (0.2, "nats")
    assert configure("nats", constraint="isotropic").trust_region() == (0.001, "of the penalty")
    assert configure("nats", constraint="isotropic", budget=0.2).trust_region() == (0.2, "of the penalty")
    with pytest.raises(ConfigError, match="no option of fidec 'samples'"):
        configure("released", constraint="isotropic", samples=2)


def test_an_unknown_preset_or_option_is_named():
    with pytest.raises(ConfigError, match="no preset of fidec 'papre'; did you mean paper"):
        algos.get("fidec").configure("papre")
    with pytest.raises(ConfigError, match="no option of fidec 'budgte'; did you mean budget"):
        algos.make("fidec", Spec((3,), 2), budgte=1.0)
    with pytest.raises(ConfigError, match="no option of deflow 'constraint'"):
        algos.get("deflow").configure(constraint="local")


@dataclass(frozen=True)
class Plain:
    """Options of a plug-in, which checks nothing."""

    mode: Literal["fast", "slow"] | None = None
    limit: float | Literal["auto"] = 1.0


PLAIN = Method("plain", "", Plain, lambda config, spec: None)  # pyright: ignore[reportArgumentType]
CONFIGURED: dict[str, Any] = {name: algos.get(name).configure for name in algos.names()}
CONFIGURED |= {kind.__name__: kind for kind in (RunConfig, OnlineConfig, EnvOptions)}
CONFIGURED |= {"plug-in": PLAIN.configure}


@pytest.mark.parametrize("which", CONFIGURED)
def test_a_choice_that_is_not_declared_is_refused_wherever_choices_are_declared(which):
    make = CONFIGURED[which]
    hints = get_type_hints(type(make()))
    declared = [name for name, hint in hints.items() if "Literal[" in str(hint)]
    for name in declared:
        for wrong in ("nonsense", True):
            with pytest.raises(ConfigError, match=f"there is no (online.)?{name} '{wrong}'"):
                make(**{name: wrong})
    assert declared or which not in ("fidec", "RunConfig", "OnlineConfig", "EnvOptions", "plug-in")


def test_a_choice_is_answered_with_the_closest_one_and_numbers_stay_numbers():
    with pytest.raises(ConfigError, match="no track 'wnadb'; did you mean wandb"):
        RunConfig(track="wnadb")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"no limit 'atuo'; did you mean auto\? Known: auto, or a number"):
        PLAIN.configure(limit="atuo")
    for limit in (2, np.float32(2.0), "auto"):
        assert PLAIN.configure(limit=limit).limit == limit


def test_the_fields_of_the_chosen_constraint_are_options(monkeypatch):
    @dataclass(frozen=True)
    class Powered(Quadratic):
        power: float = 2.0

    entries, others = {"powered": Powered}, Register.get
    monkeypatch.setattr(Register, "get", lambda self, name: entries.get(name) or others(self, name))
    chosen = METHOD.configure(constraint="powered", power=4.0)
    assert chosen.build_constraint() == Powered(power=4.0)
    assert "power" not in METHOD.config_for({"constraint": "local"}).__dataclass_fields__
    with pytest.raises(ConfigError, match="no option of fidec 'power'"):
        METHOD.configure("paper", power=4.0)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Spec((4, 4), 2), r"vectors or images .*, not of shape \(4, 4\)"),
        (Spec((64, 64, 3), 2), "images must be uint8, from 0 to 255, not float32"),
    ],
)
def test_observations_that_no_network_takes_are_named(spec, words):
    with pytest.raises(ConfigError, match=words):
        algos.make("fidec", spec)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A tiny installed distribution that adds methods; the module is forgotten afterwards."""
    package = "someones_methods"
    (tmp_path / f"{package}.py").write_text(
        "from fidec.algos import Method\n"
        "from fidec.algos.deflow import DeFlowConfig\n"
        "from fidec.algos.fidec import make\n"
        "METHOD = Method('theirs', 'a plug-in', DeFlowConfig, make, {'fast': {'flow_steps': 2}})\n"
        "NOT_A_METHOD = 'deflow'\n"
    )
    info = tmp_path / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{algos.ENTRY_POINTS}]\n"
        f"theirs = {package}:METHOD\n"
        f"wrong = {package}:NOT_A_METHOD\n"
        f"gone = {package}:MISSING\n"
        "absent = no_such_package_at_all:METHOD\n"
        f"fidec = {package}:NOT_A_METHOD\n"
        f"[fidec.environments]\nbroken = {package}:MISSING\n"
        f"[fidec.suites]\nbroken = {package}:MISSING\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop(package, None)


@pytest.mark.usefixtures("plugin")
def test_another_package_adds_a_method():
    assert "theirs" in algos.names()
    method = algos.get("theirs")
    assert method.summary == "a plug-in"
    assert method.configure("fast").flow_steps == 2
    made = algos.make("theirs", Spec((3,), 2), preset="fast", hidden=(8,))
    assert isinstance(made, algos.Algorithm)
    assert algos.names().count("fidec") == 1
    assert algos.get("fidec").config is FiDecConfig  # a plug-in does not replace one of ours


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", r"'wrong' \(someones_methods:NOT_A_METHOD of package someones_methods\) is a str, not a Method"),
        ("gone", r"'gone' \(someones_methods:MISSING of package someones_methods\) cannot be loaded"),
        ("absent", "no_such_package_at_all"),
    ],
)
def test_a_broken_plugin_is_named(name, message):
    with pytest.raises(ConfigError, match=message):
        algos.get(name)


@pytest.mark.usefixtures("plugin")
def test_a_broken_plugin_is_left_out_of_lists_and_suggestions(capsys, monkeypatch):
    for register in (METHODS, SUITES, FAMILIES):
        monkeypatch.setattr(register, "_warned", set())
    assert cli.main(["algos"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:]] == sorted([*METHODS.builtin(), "theirs"])
    for name in ("wrong", "gone", "absent"):
        assert err.count(f"left out: method '{name}' (") == 1
    assert "of package someones_methods" in err
    assert cli.main(["suite", "list"]) == 0
    assert "left out: suite 'broken' (" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="did you mean antmaze-umaze-v2"):
        find_task("antmaze-umaze-v3")
    assert capsys.readouterr().err.count("left out: environment family 'broken' (") == 1


@pytest.mark.parametrize("name", METHODS.builtin())
def test_every_option_is_documented(name):
    """Each field of a configuration is followed by a docstring, which the command line shows as its help."""
    method = algos.get(name)
    assert method.name == name
    assert method.summary
    assert all(meanings(method.config).values()), meanings(method.config)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cac", {"backup_samples": 0}),
        ("calql", {"alpha": -1.0}),
        ("deflow", {"flow_steps": 0}),
        ("fan", {"critic_penalty": -1.0}),
        ("fan", {"expectile": 1.0}),
        ("fawac", {"weight_limit": -1.0}),
        ("fbrac", {"alpha": float("nan")}),
        ("fql", {"alpha": -1.0}),
        ("idql", {"denoiser_blocks": 0}),
        ("ifql", {"flow_steps": 0}),
        ("iql", {"alpha": -1.0}),
        ("iql", {"exploration_noise": -0.1}),
        ("lps", {"interval_share": 0.0}),
        ("rebrac", {"exploration_noise": float("nan")}),
        ("rebrac", {"exploration_noise_limit": -0.5}),
        ("rebrac", {"noise_limit": -0.5}),
        ("qam", {"pessimism": -0.5}),
        ("rlpd", {"critics": 0}),
        ("fidec", {"learning_rate": float("nan")}),
        ("fidec", {"budget": 0.0}),
        ("fidec", {"target_rate": 1.5}),
        ("fidec", {"discount": 1.0}),
        ("fidec", {"grad_clip": 0.0}),
        ("srpo", {"decay_steps": -1}),
    ],
)
def test_an_option_out_of_range_is_named(name, options):
    ((option, value),) = options.items()
    with pytest.raises(ConfigError, match=rf"^{option} must .* {value}$"):
        algos.get(name).configure(**options)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bc", f"bc is not trained online: {algos.get('bc').offline_only}."),
        ("calql", "with --online.sampling balanced --online.collect episode unless told otherwise"),
        ("fidec", "Trained online with the common settings."),
    ],
)
def test_the_command_line_says_how_a_method_is_trained_online(name, words, capsys):
    assert cli.main(["algos", name]) == 0
    assert words in " ".join(capsys.readouterr().out.split())
    shown = describe(name)
    assert shown["online"] == algos.get(name).online
    assert (shown["offline_only"] is not None) == (name == "bc")
