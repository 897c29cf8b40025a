"""The Python API, and what its guide shows of it, on a real agent."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from ai_edge_litert.interpreter import Interpreter
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy

import networks
import quarl
from documents import ROOT, blocks
from quarl.commands.model import observations
from quarl.errors import QuarlError
from quarl.policy import artifact
from quarl.policy.graph import ActionHead


@pytest.fixture(scope="module")
def agent(agents):
    return quarl.load(agents / "sb3" / "ppo" / "CartPole-v1_1")


@pytest.mark.slow
def test_the_guides_python_runs_and_prints_what_its_comments_say(agents, tmp_path, monkeypatch, capsys):
    page = ROOT / "docs" / "guide" / "python.md"
    first, table, _training, live, mistake = (block.text for block in blocks(page) if block.language == "python")
    assert len(first.splitlines()) <= 12
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs" / "dqn").mkdir(parents=True)
    (tmp_path / "logs" / "dqn" / "CartPole-v1_1").symlink_to(agents / "sb3" / "dqn" / "CartPole-v1_1")
    again = run(first.replace("episodes=100", "episodes=2"))["again"]
    assert capsys.readouterr().out.split() == ["500.0", "500.0"]
    assert repr(again) == "Agent(dqn CartPole-v1, int8 dynamic, 4-256-256-2, 67,072 weights)"
    assert (tmp_path / "policy.tflite").read_bytes()[4:8] == b"TFL3"
    run(table.replace("episodes=20", "episodes=2"))
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 5
    assert quarl.load("int4e8.quarl").policy.spec.precision == "int4e8"
    capsys.readouterr()
    run(live)
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "Evaluation(CartPole-v1 on litert, 5 episodes, seed 0"
    ] * 2
    said = mistake.partition("print(error)  # ")[2].removesuffix(" ...\n")
    run(mistake)
    assert capsys.readouterr().out.startswith(said)


def run(code):
    """What the code leaves, by name."""
    names = {}
    exec(compile(code, "page", "exec"), names)
    return names


def test_stable_baselines3_can_evaluate_an_agent(agent):
    small = agent.quantize("int8")
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    mean, _ = evaluate_policy(small, env, n_eval_episodes=2, warn=False)
    assert mean == 500


def test_one_observation_and_a_batch_get_the_same_actions(agent):
    x = networks.observations(agent.policy, 9)
    together, state = agent.predict(x)
    assert state is None
    assert together.tolist() == [int(agent.predict(row)[0]) for row in x]


def test_saved_files_hold_the_same_policy(agent, tmp_path):
    x = networks.observations(agent.policy, 64)
    small = agent.quantize("int4", observations=x)
    for name in ("p.quarl", "p.tflite", "p.onnx"):
        small.save(tmp_path / name)
    assert np.array_equal(quarl.load(tmp_path / "p.quarl").predict(x)[0], small.predict(x)[0])
    assert np.array_equal(small.predict(x, engine="onnx")[0], small.predict(x)[0])


@pytest.mark.parametrize("kind", ["clip", "tanh", "gaussian", "argmax"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_files_for_other_runtimes_act(kind, precision, tmp_path):
    """Within bounds of their own, which engines leave to the head; of discrete actions they give the scores."""
    policy = networks.dense([4, 12, 6], head="clip" if kind == "gaussian" else kind)
    if kind == "gaussian":  # [mean, log_std]
        low = np.array([-1, -2, 0], np.float32)
        policy = dataclasses.replace(policy, head=ActionHead(kind, low, low + np.float32([1, 4, 0.5])))
    x = 3 * networks.observations(policy, 64)
    agent = quarl.api.Agent(policy).quantize(precision, observations=x)
    expected, _ = agent.predict(x)
    agent.save(tmp_path / "p.onnx")
    agent.save(tmp_path / "p.tflite")
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx")
    (exported,) = session.run(None, {"observation": x})
    interpreter = Interpreter(str(tmp_path / "p.tflite"))
    (source,), (output,) = interpreter.get_input_details(), interpreter.get_output_details()

    def run(batch):
        interpreter.resize_tensor_input(source["index"], batch.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(source["index"], batch)
        interpreter.invoke()
        return interpreter.get_tensor(output["index"]).copy()

    for found in (exported, np.concatenate([run(row[None]) for row in x]), run(x)):
        if kind == "argmax":
            assert found.shape == (64, 6)
            assert (found.argmax(axis=1) == expected).all()
        else:
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 if precision == "fp32" else 0.02)
            assert (found >= policy.head.low).all()
            assert (found <= policy.head.high).all()


def test_engines_of_many_batch_sizes_are_not_kept(agent):
    for batch in range(1, 12):
        agent.predict(np.zeros((batch, 4), np.float32))
    assert len(agent._engines) == quarl.api.KEPT_ENGINES
    assert ("litert", 11) in agent._engines


def test_images_of_either_order_of_axes_are_seen():
    policy = networks.convolutional()
    x = networks.observations(policy, 8)
    agent = quarl.api.Agent(policy)
    assert np.array_equal(agent.predict(x.transpose(0, 2, 3, 1))[0], agent.predict(x)[0])
    assert agent.predict(x[0].transpose(1, 2, 0))[0] == agent.predict(x[0])[0]


def test_an_agent_that_names_no_environment_calibrates_in_one_that_is_named():
    agent = quarl.api.Agent(networks.dense([4, 16, 2]))
    with pytest.raises(QuarlError, match=r"name one with --env \(env_id or env in Python\)"):
        agent.quantize("int8")
    assert agent.quantize("int8", env_id="CartPole-v1").policy.spec.precision == "int8"
    rows = networks.observations(agent.policy, 16).tolist()
    assert agent.quantize("int8", observations=rows).policy.spec.precision == "int8"


def test_images_are_bytes():
    """Runtimes would cut the fractions off without a word."""
    policy = networks.convolutional()
    x = networks.observations(policy, 2)
    agent = quarl.api.Agent(policy)
    assert len(agent.predict(x)[0]) == 2
    with pytest.raises(QuarlError, match=r"observation is float32, the policy expects bytes 0\.\.255"):
        agent.predict(x.astype(np.float32) / 255)
    images = networks.observations(policy, 16)  # of calibration, too
    with pytest.raises(QuarlError, match=r"is float32, the policy expects bytes"):
        agent.quantize("int8", observations=(images / 255).astype(np.float32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda agent: agent.predict(np.zeros(7, np.float32)), r"observation is \(7,\), the policy expects \(4,\)"),
        (lambda agent: agent.predict(np.zeros(4, np.float32), deterministic=False), "deterministic"),
        (lambda agent: agent.quantize("fp16").quantize("int8"), "is fp16 already"),
        (lambda agent: agent.quantize("int99"), "weight bits must be"),
    ],
)
def test_mistakes_are_one_line(agent, call, message):
    with pytest.raises(QuarlError, match=message):
        call(agent)


@pytest.mark.parametrize("engine", ["litert", "onnx"])
def test_threads_may_share_an_agent(engine):
    policy = networks.dense([8, 256, 256, 4], "tanh", head="clip")
    agent, x = quarl.Agent(policy), networks.observations(policy, 4)
    expected = [agent.predict(row, engine=engine)[0] for row in x]

    def wrong(number):
        return sum(
            not np.array_equal(agent.predict(x[number], engine=engine)[0], expected[number]) for _ in range(1500)
        )

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(wrong, range(4))) == [0, 0, 0, 0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent))])
def test_an_agent_that_has_acted_can_be_copied(copied):
    agent = quarl.Agent(networks.dense([4, 16, 2])).quantize("int8", scheme="per-channel")
    x = networks.observations(agent.policy, 3)
    assert np.array_equal(agent.predict(x)[0], copied(agent).predict(x)[0])


@pytest.mark.parametrize("suffix", [".zip", ".PT", ".h5", ".c", ".lite", ".onxx", ".tflite2", ".json", ".v2"])
def test_no_file_is_saved_under_another_format_s_name(tmp_path, suffix):
    with pytest.raises(QuarlError, match=rf"as {suffix.lower()}: use \.safetensors, \.quarl, \.tflite or \.onnx$"):
        quarl.Agent(networks.dense([4, 16, 2])).save(tmp_path / f"policy{suffix}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["policy", "policy.quarl", "policy.SafeTensors", ".hidden"])
def test_a_policy_is_saved_under_the_very_name_that_was_given(tmp_path, name):
    agent = quarl.Agent(networks.dense([4, 16, 2]))
    agent.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    x = networks.observations(agent.policy, 9)
    assert np.array_equal(quarl.load(tmp_path / name).predict(x)[0], agent.predict(x)[0])


@pytest.mark.parametrize(
    ("precision", "mode", "cause"),
    [
        ("int8", "dynamic", r"activations quantized at run time \(mode='dynamic'\);"),
        ("int4", "dynamic", r"at run time \(mode='dynamic'\) and 4-bit weights;"),
        ("int4", "static", "for 4-bit weights;"),
        ("fp16", "dynamic", "for half floats;"),
        ("fp32", "dynamic", None),
        ("int8", "static", None),
    ],
)
def test_what_tflite_micro_cannot_run_is_said_once_where_it_is_written(tmp_path, capsys, precision, mode, cause):
    agent = quarl.Agent(networks.dense([4, 16, 16, 2]))
    x = networks.observations(agent.policy, 64)
    agent.quantize(precision, mode=mode, observations=x).save(tmp_path / "p.tflite")
    *said, statistics = capsys.readouterr().err.splitlines()
    assert statistics == "quarl: p.tflite: no VecNormalize statistics: observations are not normalized"
    if cause is None:
        assert said == []
    else:
        (line,) = said
        assert re.match(rf"quarl: p\.tflite: this file is for LiteRT.*{cause} it runs fp32 and static int8$", line)


def test_formats_are_chosen_by_suffixes_in_any_case_and_values_have_names(tmp_path):
    quarl.Agent(networks.dense([4, 16, 2])).save(tmp_path / "POLICY.TFLITE")
    interpreter = Interpreter(str(tmp_path / "POLICY.TFLITE"))
    assert [found[0]["name"] for found in (interpreter.get_input_details(), interpreter.get_output_details())] == [
        "observation",
        "output",
    ]


def test_what_no_runtime_has_kernels_for_says_what_to_do_instead(tmp_path):
    agent = quarl.Agent(networks.dense([4, 16, 2])).quantize("w8a4", scheme="per-channel")
    with pytest.raises(QuarlError, match=r"LiteRT runs 8-bit activations only, not w8a4; use engine reference$"):
        agent.predict(np.zeros(4, np.float32))
    for suffix in ("tflite", "onnx"):
        with pytest.raises(QuarlError, match=r"save it as \.safetensors$"):
            agent.save(tmp_path / f"policy.{suffix}")


@pytest.mark.parametrize(("path", "said"), [("nowhere.zip", "nowhere"), ("x" * 5000, "cannot read"), ("/", None)])
def test_what_holds_no_agent_is_a_user_s_mistake(path, said):
    with pytest.raises(quarl.QuarlError, match=said):
        quarl.load(path)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"env": "CartPole-v1"}, "env is a str, not a gymnasium.Env; an id is given as env_id"),
        ({"env_name": "CartPole-v1"}, "evaluate has no keyword 'env_name'; did you mean 'env_id'?"),
        (
            {"env_id": gymnasium.make("CartPole-v1").unwrapped},
            "env_id is a CartPoleEnv: give a Gymnasium id, as in 'CartPole-v1', or the environment as env",
        ),
        ({"episodes": "5"}, "episodes is '5', not a whole number"),
        ({"seed": None}, "seed is 'None', not a whole number"),
    ],
)
def test_a_careless_evaluation_is_told_the_right_keyword(options, line):
    with pytest.raises(QuarlError, match=re.escape(line)):
        quarl.Agent(networks.dense([4, 2])).evaluate(**options)
    if "env_name" in options:
        with pytest.raises(QuarlError, match="quantize has no keyword 'env_name'; did you mean 'env_id'"):
            quarl.Agent(networks.dense([4, 2])).quantize(8, env_name="CartPole-v1")


@pytest.mark.slow
def test_a_quantised_agent_knows_the_environment_that_it_was_calibrated_in(tmp_path):
    agent = quarl.Agent(networks.dense([8, 2], head="argmax"))
    options = {"env_id": "CartPole-v1", "frame_stack": 2, "max_episode_steps": 3}
    with pytest.raises(QuarlError, match=r"they are 2 frames of it: --frame-stack 2 .frame_stack=2 in Python"):
        agent.quantize(8, env_id="CartPole-v1")
    path = tmp_path / "policy.safetensors"
    agent.quantize(8, **options).save(path)
    assert quarl.load(path).evaluate(episodes=4, num_workers=2).lengths.tolist() == [3, 3, 3, 3]
    assert agent.evaluate(episodes=2, **options | {"max_episode_steps": 5}).lengths.tolist() == [5, 5]


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        ((np.zeros(4, np.float32), {}), r"act on the observation alone"),
        ([[1.0, 2.0], [3.0]], "not an array of numbers"),
        ({"state": np.zeros(4)}, "a dict of object"),
        (None, "a NoneType"),
        (np.zeros((0, 4)), "at least one"),
        (np.float64(1), r"observation is \(\)"),
        (np.array([0, 0, np.nan, 0]), "NaN or infinity"),
        *((np.float32([0, value, 0, 0]), "NaN or infinity") for value in (np.nan, np.inf, -np.inf)),
        (np.full(4, 1e300), "NaN or infinity"),  # in float32, which networks compute in
    ],
)
def test_a_careless_observation_is_refused_with_the_fix(observation, said):
    with pytest.raises(QuarlError, match=said):
        quarl.Agent(networks.dense([4, 8, 2])).predict(observation)


def test_what_a_policy_cannot_do_is_refused_with_the_fix():
    agent = quarl.Agent(networks.dense([4, 2], head="clip"))
    with pytest.raises(QuarlError, match="action_masks require discrete actions, but the policy's are continuous"):
        agent.predict(np.zeros(4, np.float32), action_masks=[True, True])
    with pytest.raises(QuarlError, match="this policy is int8 already; distill the fp32 one"):
        agent.quantize(8, observations=np.zeros((40, 4), np.float32)).distill(4)


def test_tensors_lists_and_whole_numbers_are_observations():
    agent = quarl.Agent(networks.dense([4, 8, 2]))
    row = [1, -2, 3, 0]
    expected = agent.predict(np.float32(row))[0]
    for same in (row, tuple(row), np.array(row), np.array(row, np.float64), torch.tensor(row), torch.tensor(row) > 0):
        assert agent.predict(same)[0] == (expected if np.array_equal(same, row) else agent.predict([1, 0, 1, 0])[0])
    assert agent.predict(torch.tensor(row, dtype=torch.float32, requires_grad=True))[0] == expected


def test_an_agent_an_evaluation_and_a_precision_are_shown_in_a_line(agent):
    small = agent.quantize("int8", mode="static")
    assert repr(agent) == "Agent(ppo CartPole-v1, fp32, 4-64-64-2, 4,480 weights)"
    assert repr(small) == "Agent(ppo CartPole-v1, int8 static, 4-64-64-2, 4,480 weights)"
    assert repr(small.policy) == "QuantizedPolicy(ppo CartPole-v1, int8 static, 4-64-64-2, 4,480 weights)"
    assert repr(small.policy.spec) == "QuantSpec(int8 static, scheme default)"
    assert repr(quarl.Agent(networks.dense([4, 2])).quantize("fp16")) == "Agent(fp16, 4-2, 8 weights)"
    played = dataclasses.replace(agent.evaluate(episodes=2), returns=np.array([1.0, 4.0]))
    assert repr(played) == "Evaluation(CartPole-v1 on litert, 2 episodes, seed 0: return 2.5 ± 1.5)"


def test_the_functions_of_the_package_take_a_path_and_the_agent_alike(agent, agents):
    path = agents / "sb3" / "ppo" / "CartPole-v1_1"
    expected = agent.evaluate(episodes=2, max_episode_steps=7)
    for each in (agent, path, str(path)):
        played = quarl.evaluate(each, episodes=2, max_episode_steps=7)
        assert (played.returns.tolist(), played.seeds.tolist()) == ([7, 7], expected.seeds.tolist())
    with pytest.raises(QuarlError, match="evaluate has no keyword 'episods'; did you mean 'episodes'"):
        quarl.evaluate(agent, episods=2)
    with pytest.raises(QuarlError, match=r"agent is a Linear, neither an Agent nor a path; quarl\.from_sb3 takes"):
        quarl.evaluate(torch.nn.Linear(4, 2))


def test_a_live_model_and_a_module_become_agents_that_act_as_they_do():
    x = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
    model = SAC("MlpPolicy", "Pendulum-v1", seed=0)
    np.testing.assert_allclose(quarl.from_sb3(model).predict(x)[0], model.predict(x, deterministic=True)[0], atol=1e-5)
    module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    with torch.no_grad():
        scores = module(torch.as_tensor(x)).numpy()
    scored = quarl.from_module(module, observation=(3,), head=gymnasium.spaces.Discrete(4))
    assert (scored.predict(x)[0] == scores.argmax(axis=1)).all()
    bounded = quarl.from_module(module, (3,), gymnasium.spaces.Box(-0.1, 0.1, (4,)))
    np.testing.assert_allclose(bounded.predict(x)[0], scores.clip(-0.1, 0.1), atol=1e-6)
    with pytest.raises(QuarlError, match="head"):
        quarl.from_module(module, (3,), gymnasium.spaces.Dict())


def test_a_module_is_told_what_it_observes_by_a_shape_or_by_the_space():
    head, network = gymnasium.spaces.Discrete(2), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    frames = gymnasium.spaces.Box(0, 255, (3, 2, 2), np.uint8)
    plain, frame = (
        quarl.from_module(network, space, head).policy for space in (gymnasium.spaces.Box(-1, 1, (12,)), frames)
    )
    assert (plain.observation_shape, plain.observation_dtype) == ((12,), "float32")
    assert (frame.observation_shape, frame.observation_dtype) == ((3, 2, 2), "uint8")
    shaped = quarl.Agent.from_module(network, (3, 2, 2), head, observation_dtype="uint8")
    assert artifact.to_bytes(shaped.policy) == artifact.to_bytes(frame)
    with pytest.raises(QuarlError, match="from_module has no keyword 'observations'; did you mean 'observation'"):
        quarl.from_module(network, observations=(12,), head=head)
    with pytest.raises(QuarlError, match="observation"):
        quarl.from_module(network, gymnasium.spaces.Sequence(head), head)


def test_saving_says_where_the_parts_of_an_observation_lie_in_the_row(tmp_path, capsys):
    quarl.Agent(networks.sliced()).save(tmp_path / "p.onnx")
    said = capsys.readouterr().err
    row = "image (Box (2, 8, 8)) from 0, goal (Box (3,)) from 128, one (Discrete () of 5 values) from 131"
    assert f"p.onnx: it reads one row, as gymnasium flattens it: {row}\n" in said


def test_recorded_parts_of_an_observation_are_arrays_of_one_file(tmp_path):
    policy = networks.sliced()
    parts = {"image": np.ones((4, 2, 8, 8)), "goal": np.zeros((4, 3)), "one": np.array([0, 1, 4, 4])}
    np.savez(tmp_path / "o.npz", **parts)
    rows = observations(tmp_path / "o.npz", policy)
    assert rows.shape == (4, 136)
    assert rows[2, 128:].tolist() == [0, 0, 0, 0, 0, 0, 0, 1]
    again = quarl.Agent(policy).predict(parts)[0]
    np.testing.assert_array_equal(quarl.Agent(policy).predict(rows)[0], again)


@pytest.mark.parametrize("name", ["rows.npy", "rows.txt"])
def test_observations_in_another_format_name_those_that_are_read(name, tmp_path):
    (tmp_path / name).write_text("0.5,0.5,0.1,0.2\n" * 300)
    with pytest.raises(
        QuarlError, match=rf"{name} is not a \.npy, \.npz or \.csv file: save the observations with numpy\.save"
    ):
        observations(tmp_path / name, networks.dense([4, 2]))
