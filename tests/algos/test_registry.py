"""The register of methods, and a plug-in from another package."""

from __future__ import annotations

import importlib
import itertools
import sys

import pytest

from fidec import algos, cli
from fidec.algos.common.residual import ResidualConfig
from fidec.algos.deflow import DeFlowConfig
from fidec.algos.fidec import FiDecConfig
from fidec.cli.algos import describe
from fidec.errors import ConfigError
from fidec.types import Spec


def test_own_methods_are_listed_and_found():
    assert {"fidec", "deflow"} <= set(algos.names())
    for name in ("fidec", "deflow"):
        method = algos.get(name)
        assert method.name == name
        assert method.summary


@pytest.mark.parametrize(("wrong", "expected"), [("fidek", "did you mean fidec"), ("xyz", "Known methods: ")])
def test_an_unknown_name_is_answered_with_help(wrong, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        algos.get(wrong)
    assert wrong in str(caught.value)
    assert ", ".join(algos.names()) in str(caught.value)


def test_presets():
    fidec = algos.get("fidec")
    assert fidec.configure() == fidec.configure("recommended") == FiDecConfig()
    paper, released = fidec.configure("paper"), fidec.configure("released")
    assert (paper.metric, paper.t_eps, paper.dual, paper.order) == ("local", 0.8, "projected", "alternating")
    assert (paper.half, paper.per_dimension, paper.trace_scale, paper.samples) == (True, False, "unit", 1)
    assert (released.metric, released.t_eps, released.t_width, released.samples) == ("released", 0.9, 0.05, 8)
    assert (released.dual, released.order, released.clip_scope) == ("log", "joint", "global")
    assert fidec.configure("paper", budget=0.5).budget == 0.5
    assert fidec.configure("paper", metric="renoised").metric == "renoised"
    assert algos.get("deflow").configure("paper").multiplier_init == pytest.approx(2.71828, abs=1e-5)
    for name in algos.PRESETS:
        assert isinstance(algos.get("deflow").configure(name), DeFlowConfig)


def test_an_unknown_preset_or_option_is_refused():
    with pytest.raises(ConfigError, match="no preset 'papre'; it has recommended, paper, released"):
        algos.get("fidec").configure("papre")
    with pytest.raises(ConfigError, match=r"no option budgte; it has .*budget"):
        algos.make("fidec", Spec((3,), 2), budgte=1.0)
    with pytest.raises(ConfigError, match="no option metric"):
        algos.get("deflow").configure(metric="local")


@pytest.mark.parametrize(
    "field",
    [
        {"metric": "fisher"},
        {"trace_scale": "trace"},
        {"dual": "adam"},
        {"order": "serial"},
        {"q_aggregate": "max"},
        {"clip_scope": "all"},
        {"t_eps": 1.0},
        {"t_eps": 0.0},
        {"t_width": -0.1},
        {"samples": 0},
        {"damping": -1.0},
        {"budget": 0.0},
        {"learning_rate": float("nan")},
        {"discount": 1.0},
        {"target_rate": 0.0},
        {"target_rate": 1.5},
        {"grad_clip": 0.0},
        {"flow_steps": 0},
        {"hidden": ()},
        {"order": "alternating", "clip_scope": "global", "grad_clip": 5.0},
    ],
    ids=str,
)
def test_a_value_without_sense_is_refused_and_named(field):
    with pytest.raises(ConfigError, match=next(iter(field))):
        FiDecConfig(**field)


def test_shared_options_are_checked_for_deflow_too():
    with pytest.raises(ConfigError, match="dual must be one of log, projected, not 'linear'"):
        DeFlowConfig(dual="linear")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Spec((4, 4), 2), r"vectors or images .*, not of shape \(4, 4\)"),
        (Spec((64, 64, 3), 2), "images must be uint8, from 0 to 255, not float32"),
    ],
)
def test_observations_that_no_network_takes_are_refused(spec, words):
    with pytest.raises(ConfigError, match=words):
        algos.make("fidec", spec)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A tiny installed distribution that adds methods; the register's cache is emptied before and after."""
    package = "someones_methods"
    (tmp_path / f"{package}.py").write_text(
        "from fidec.algos import Method\n"
        "from fidec.algos.deflow import DeFlowConfig, make\n"
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
        ("wrong", "NOT_A_METHOD of method 'wrong' is not a fidec.algos.Method"),
        ("gone", "'gone' of entry point someones_methods:MISSING cannot be loaded"),
        ("absent", "no_such_package_at_all"),
    ],
)
def test_a_broken_plugin_is_named(name, message):
    with pytest.raises(ConfigError, match=message):
        algos.get(name)


def test_every_option_is_documented():
    """Each field of a configuration is followed by a docstring, which the command line shows as its help."""
    import ast
    import inspect
    import textwrap

    for config in (ResidualConfig, FiDecConfig):
        body = ast.parse(textwrap.dedent(inspect.getsource(config))).body[0].body  # type: ignore[attr-defined]
        for statement, after in itertools.pairwise(body):
            if isinstance(statement, ast.AnnAssign):
                assert isinstance(after, ast.Expr), f"{config.__name__}.{ast.unparse(statement.target)}"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cac", {"backup_samples": 0}),
        ("calql", {"alpha": -1.0}),
        ("deflow", {"flow_steps": 0}),
        ("fawac", {"weight_limit": -1.0}),
        ("fbrac", {"alpha": float("nan")}),
        ("fql", {"alpha": -1.0}),
        ("idql", {"denoiser_blocks": 0}),
        ("ifql", {"flow_steps": 0}),
        ("iql", {"alpha": -1.0}),
        ("iql", {"exploration_noise": -0.1}),
        ("rebrac", {"exploration_noise": float("nan")}),
        ("rebrac", {"exploration_noise_limit": -0.5}),
        ("rebrac", {"noise_limit": -0.5}),
        ("rlpd", {"critics": 0}),
        ("srpo", {"decay_steps": -1}),
    ],
)
def test_an_option_out_of_range_is_refused_by_its_name(name, options):
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
