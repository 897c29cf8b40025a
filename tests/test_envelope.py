"""The envelope of calibration: rows around the path, which static grids then cover, in every verb that calibrates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import networks
import quarl
import refusals
from quarl import evaluation
from quarl import export as exporting
from quarl.cli import main
from quarl.distillation.validation import Validation
from quarl.engines.numpy_operators import as_float
from quarl.engines.reference import Reference
from quarl.envelope import met_in
from quarl.envs.environment import home_of
from quarl.evaluation import record
from quarl.off_path import away
from quarl.policy import artifact
from quarl.post_training import layer_bits
from quarl.specs import DistillSpec, PtqSpec


@pytest.fixture
def few(monkeypatch):
    """Episodes give 300 observations instead of 4,096."""
    monkeypatch.setattr(evaluation, "NUM_OBSERVATIONS", 300)


@pytest.fixture
def x(elsewhere):
    """400 observations of a policy that names no environment, and 50 rows far from them; the folder has all three."""
    x = networks.saved()
    np.save("x.npy", x)
    np.save("far.npy", 20 * x[:50])
    return x


def car():
    """A policy of short episodes in an environment whose observations are bounded."""
    policy = networks.dense([2, 8, 3], head="argmax")
    return replace(policy, provenance=replace(policy.provenance, env_id="MountainCar-v0", max_episode_steps=20))


def errors(policy, quantized, x):
    return np.abs(as_float(policy, x)[policy.output] - Reference(quantized.policy, len(x)).run(x))


def test_visited_adds_rows_away_from_their_mean(x):
    policy = quarl.load("policy.quarl").policy
    rows = met_in("visited*2", policy, recorded=x, seed=3)
    assert np.array_equal(rows, np.concatenate([x, away(x, 2, seed=3)]))
    mean = x.mean(axis=0)
    factors = np.linalg.norm(rows[400:] - mean, axis=1) / np.linalg.norm(x - mean, axis=1)
    assert 1 <= factors.min() + 1e-4 < 1.1 < 1.9 < factors.max() < 2.001
    assert met_in("path", policy, recorded=x) is x


def test_static_grids_cover_the_envelope_and_err_less_in_it(x):
    agent, far = quarl.load("policy.quarl"), np.load("far.npy")
    path = agent.quantize("int8", mode="static", observations=x)
    covering = agent.quantize("int8", mode="static", observations=x, envelope=far)
    assert np.array_equal(covering.policy.box[1], np.maximum(x.max(axis=0), far.max(axis=0)))
    assert np.array_equal(path.policy.box[1], x.max(axis=0))
    hidden = covering.policy.ops[0].name
    assert covering.policy.grids[hidden].scale > 5 * path.policy.grids[hidden].scale
    assert errors(agent.policy, covering, far).max() < errors(agent.policy, path, far).max() / 10


def test_env_adds_perturbed_episodes_random_starts_and_the_box(few, capsys):
    policy = car()
    recorded, rows = record(policy), met_in("env", policy)
    assert np.array_equal(rows[: len(recorded)], recorded)
    share = -(-len(recorded) // 3)
    perturbed, starts, box = np.split(rows[len(recorded) :], [share, 2 * share])
    assert len(box) == share
    assert 0 < np.abs(recorded[:, 1]).max() < 0.03 < np.abs(starts[:, 1]).max()  # a car that nobody has pushed is slow
    assert not np.isin(perturbed, recorded).all()
    low, high = np.float32([-1.2, -0.07]), np.float32([0.6, 0.07])
    assert ((low <= box) & (box <= high)).all()
    assert (np.ptp(box, axis=0) > 0.9 * (high - low)).all()
    assert np.corrcoef(box.T)[0, 1] == pytest.approx(0, abs=0.3)
    assert capsys.readouterr().err == ""
    with_grids = quarl.Agent(policy).quantize("int8", mode="static", envelope="env")
    assert np.array_equal(with_grids.policy.box, [rows.min(axis=0), rows.max(axis=0)])


def test_env_without_bounds_or_environment_falls_back_and_says_so(few, x, capsys):
    policy = networks.cartpole()
    rows = met_in("env", policy)
    path = record(policy)
    assert np.array_equal(rows[-len(path) :], away(path, 1.5))
    (line,) = capsys.readouterr().err.splitlines()
    assert "envelope env has no box: its observations need 8 numbers or fewer, and bounds for each" in line
    assert line.endswith("; visited*1.5 replaces it")
    rows = met_in("env", quarl.load("policy.quarl").policy, recorded=x)
    assert np.array_equal(rows, np.concatenate([x, away(x, 1.5)]))
    (line,) = capsys.readouterr().err.splitlines()
    assert "envelope env has no environment beside recorded observations: visited*1.5 replaces it" in line


@pytest.mark.parametrize("envelope", ["visited*3", "far.npy"])
def test_every_function_calibrates_on_the_same_rows(envelope, x):
    agent = quarl.load("policy.quarl")
    rows = np.load(envelope) if envelope == "far.npy" else envelope
    wanted = agent.quantize("int8", mode="static", observations=x[:360], envelope=rows)
    recipe = DistillSpec(bits=("8",), mode="static")
    made = [
        quarl.ptq(agent, 8, mode="static", observations=x, envelope=rows).agents["int8"].policy,
        exporting.quantised(agent.policy, "c", observations=x, envelope=rows),
        Validation(agent.policy, recipe, x, envelope=rows).calibrated().quantize(wanted.policy.spec),
    ]
    assert {artifact.to_bytes(each) for each in made} == {artifact.to_bytes(wanted.policy)}


@pytest.mark.slow
def test_verbs_add_the_rows_of_a_file(x):
    words = ["policy.quarl", "--observations", "x.npy", "--envelope", "far.npy", "--mode", "static"]
    assert main(["ptq", *words, "--bits", "8", "-o", "ptq"]) == 0
    assert main(["export", *words, "-o", "export"]) == 0
    assert main(["distill", *words, "--bits", "8", "--rounds", "1", "--updates", "1", "-o", "distill"]) == 0
    wanted = quarl.load("policy.quarl").quantize(
        "int8", mode="static", observations=x[:360], envelope=np.load("far.npy")
    )
    for path in ("ptq/int8.safetensors", "export/policy.quarl", "distill/int8.safetensors"):
        policy = quarl.load(path).policy
        assert np.array_equal(policy.box, wanted.policy.box)
        assert policy.grids == wanted.policy.grids


def test_auto_searches_on_the_rows_of_the_envelope(few):
    asked = PtqSpec(auto=True, mode="static", engine="reference")
    policy = car()
    rows = np.full((9, 2), 7, np.float32)
    search = layer_bits._Search(policy, home_of(policy), asked, lambda label, done: None, None, rows)
    assert np.array_equal(search.calibrated.observations[-9:], rows)


def test_a_dynamic_policy_gets_grids_over_the_envelope(x):
    policy, far = quarl.load("policy.quarl").quantize("int8", observations=x).policy, np.load("far.npy")
    low, high = exporting.quantised(policy, "c", observations=x, envelope=far).box
    assert np.array_equal(high, np.maximum(far.max(axis=0), x[:360].max(axis=0)))
    assert np.array_equal(low, np.minimum(far.min(axis=0), x[:360].min(axis=0)))


UNKNOWN = "use path, env, visited*K with K of at least 1, or a .npy, .npz or .csv file"
REFUSED = {
    "ptq policy.quarl --mode static": {
        "visited*0.9": f"--envelope is 'visited*0.9'; {UNKNOWN}",
        "visited*": f"--envelope is 'visited*'; {UNKNOWN}",
        "visited*-2": f"--envelope is 'visited*-2'; {UNKNOWN}",
        "visited*1e9": f"--envelope is 'visited*1e9'; {UNKNOWN}",
        "everywhere": f"--envelope is 'everywhere'; {UNKNOWN}",
        "nowhere.csv": "nowhere.csv",
        "narrow.npy --observations x.npy": "observation is (40, 5), the policy expects (6,)",
        "hole.npy --observations x.npy": "hole.npy, row 1, column 1 is inf; use finite",
    },
    "ptq policy.quarl": {"env": "--envelope requires --mode static: add that, or drop it"},
    "export policy.quarl --mode dynamic": {"env": "--envelope requires --mode static: add that, or drop it"},
    "export policy.quarl --precision fp16 --observations x.npy": {"visited*2": "the policy has none, as fp16"},
    "export static.quarl --observations x.npy": {"visited*2": "the policy keeps its own grids: drop the envelope"},
    "distill policy.quarl": {"far.npy": "--envelope requires --mode static: add that, or drop it"},
}


@pytest.mark.parametrize(
    ("words", "line"),
    [(f"{verb} --envelope {word}", line) for verb, all in REFUSED.items() for word, line in all.items()],
)
def test_envelopes_that_cannot_be_covered_are_one_line(words, line, x, tmp_path, capsys):
    np.save("narrow.npy", np.zeros((40, 5)))
    np.save("hole.npy", np.full((40, 6), np.inf))
    quarl.load("policy.quarl").quantize("int8", mode="static", observations=x).save("static.quarl")
    assert line in refusals.refused(capsys, *words.split())
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_python_refuses_envelopes_by_its_own_words(x):
    agent = quarl.load("policy.quarl")
    for call, line in (
        (
            {"envelope": "far.npy", "mode": "static"},
            "envelope is 'far.npy'; use path, env, visited*K with K of at least 1",
        ),
        ({"envelope": x}, "envelope requires --mode static"),
        ({"envelope": x[:, :5], "mode": "static"}, r"observation is \(400, 5\), the policy expects \(6,\)"),
    ):
        with pytest.raises(quarl.QuarlError, match=line.replace("*", r"\*")):
            agent.quantize("int8", observations=x, **call)
