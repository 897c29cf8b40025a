"""A learner's update as a CUDA graph sees it: no question to the host, and the numbers of the update that asks."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch.distributions import Normal

from quarl.actorq.replay import SegmentReplay
from quarl.algorithms import captured
from quarl.algorithms.captured import Graphs, Later, Questions, ReadLater, Updates, graphs_for, unasked
from quarl.algorithms.d4pg import D4PG
from quarl.algorithms.double_dqn import DoubleDQN
from quarl.algorithms.precision import Precision, chosen
from quarl.lab.trainings import actorq_config
from quarl.runs import checkpoint_model
from sb3_archives import Still
from stress.chaos import poison

ALGORITHMS = (DQN, DoubleDQN, DDPG, TD3, SAC, D4PG)
ROWS = 400
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
VECTOR = spaces.Box(-1, 1, (5,), np.float32)


class Rerun(Graphs):
    """Where there is no GPU: a recording that runs its body again, as a replay would run its kernels."""

    def __init__(self) -> None:
        self.num_recorded = self.num_warm = 0

    def fill(self, static, batch):
        for place, tensor in zip(static, batch, strict=True):
            place.copy_(tensor)

    def warm(self, body):
        self.num_warm += 1
        body()

    def record(self, body):
        self.num_recorded += 1
        return body


def learner(cls, *, observation_space=VECTOR, batch_size=32, **more):
    """A model whose replay is full of made-up rows, the same for equal arguments."""
    torch.manual_seed(0)
    policy, arch = ("CnnPolicy", [32]) if observation_space is IMAGE else ("MlpPolicy", [64, 64])
    arch = {"pi": arch, "qf": arch} if cls is D4PG else arch
    kwargs = {"net_arch": arch, "optimizer_kwargs": {"fused": True}} | more.pop("policy_kwargs", {})
    model = cls(
        policy,
        Still(observation_space, spaces.Discrete(3) if issubclass(cls, DQN) else spaces.Box(-1, 1, (2,), np.float32)),
        device="cpu",
        seed=0,
        batch_size=batch_size,
        buffer_size=ROWS,
        replay_buffer_class=SegmentReplay,
        policy_kwargs=kwargs,
        **more,
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    model._setup_learn(1000)
    if cls is D4PG:
        model.say = lambda _: None
    replay, rng = model.replay_buffer, np.random.default_rng(0)
    rows = np.zeros(ROWS, replay.segment_dtype)
    rows["sequence"] = np.arange(ROWS)
    for name in ("observation", "next_observation"):
        shape = rows[name].shape
        pixels = rows[name].dtype == np.uint8
        rows[name] = rng.integers(0, 256, shape) if pixels else rng.standard_normal(shape)
    rows["action"] = rng.integers(3, size=ROWS) if issubclass(cls, DQN) else rng.uniform(-1, 1, (ROWS, 2))
    rows["reward"], rows["terminated"] = rng.standard_normal(ROWS), np.arange(ROWS) % 50 == 49
    replay.insert(rows)
    replay.set_seed(1)
    torch.manual_seed(5)
    return model


def updates(model, graphs=None, dtype="fp32") -> Updates:
    return Updates(model, Precision.of(model, dtype), graphs)


def losses_of(each: Updates, number: int) -> list[dict[str, float]]:
    """Of so many updates, from a seed of the noise that is always the same."""
    torch.manual_seed(5)
    losses = []
    for _ in range(number):
        each.update()
        losses.append(each.losses())
    return losses


def batch_of(model) -> ReplayBufferSamples:
    return model.replay_buffer.sample(model.batch_size)


pytestmark = pytest.mark.filterwarnings("ignore:.*is ignored because a custom `replay_buffer_class`")


@pytest.mark.parametrize("cls", ALGORITHMS)
def test_an_update_asks_the_host_nothing(cls):
    """And as it is, each asks: the counter sees what there is to see."""
    model = learner(cls)
    plain = updates(model)
    for _ in range(4):
        plain.update()
    with Questions() as asked:
        model.train(1, 32)
    assert asked.places
    recorded = updates(model, Rerun())
    for number in range(4):  # both of TD3's phases
        model._n_updates = 4 + number
        with unasked(model, batch_of(model), torch.tensor(1e-3)), Questions() as asked:
            model.train(1, 32)
        assert asked.places == []
    assert recorded.graphs is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "more"),
    [*((cls, {}) for cls in ALGORITHMS), (DQN, {"observation_space": IMAGE}), (D4PG, {"target_update_interval": 7})],
)
def test_a_hundred_recorded_updates_are_a_hundred_plain_ones(cls, more):
    """Bit for bit, on every processor: the same kernels on the same numbers in tensors that torch aligns.

    The rate is a power of two. A recorded update reads it from a float32 tensor, a plain one from a Python float, and
    1e-3 rounded to float32 would differ by up to 2^-24 of itself, which a hundred updates amplify beyond any bound.
    """
    number = 100 if "observation_space" not in more else 30
    more = {"learning_rate": 2**-10} | more
    plain, recorded, graphs = learner(cls, **more), learner(cls, **more), Rerun()
    for optimizer in captured.optimizers(plain):  # SAC's coefficient has Adam as it is; a recording fuses every step
        optimizer.param_groups[0]["fused"] = True
    sample = plain.replay_buffer.sample
    plain.replay_buffer.sample = lambda *words, **more: ReplayBufferSamples(*map(torch.clone, sample(*words, **more)))
    one, other = updates(plain), updates(recorded, graphs)
    assert (one.settled, other.settled) == (True, False)
    assert losses_of(one, number) == losses_of(other, number)
    phases = 2 if cls is TD3 else 1
    assert other.settled
    assert (graphs.num_warm, graphs.num_recorded, other.graphs) == (phases * captured.WARM, phases, graphs)
    assert plain._n_updates == recorded._n_updates == number
    here, there = plain.policy.state_dict(), recorded.policy.state_dict()
    assert [name for name in here if not torch.equal(here[name], there[name])] == []


def test_the_rate_of_every_recorded_update_is_that_of_the_schedule():
    plain, recorded = learner(SAC), learner(SAC)
    one, other = updates(plain), updates(recorded, Rerun())
    for model in (plain, recorded):
        model.lr_schedule = lambda progress: 1e-2 * progress
    for model, each in ((plain, one), (recorded, other)):
        torch.manual_seed(5)
        for number in range(12):
            model._current_progress_remaining = 1 - number / 12
            each.update()
    assert recorded.logger.name_to_value["train/learning_rate"] == pytest.approx(1e-2 / 12)
    assert float(recorded.log_ent_coef.detach()) == pytest.approx(float(plain.log_ent_coef.detach()), abs=1e-6)


def test_nothing_of_a_recording_is_left_behind():
    model = learner(SAC)
    plain, validates = torch.Tensor.item, torch.distributions.Distribution._validate_args
    groups = [dict(group) for optimizer in captured.optimizers(model) for group in optimizer.param_groups]
    with pytest.raises(ZeroDivisionError), unasked(model, batch_of(model), torch.tensor(1.0)):
        raise ZeroDivisionError
    assert (torch.Tensor.item, torch.distributions.Distribution._validate_args) == (plain, validates)
    assert "asks" not in vars(model)
    assert "sample" not in vars(model.replay_buffer)
    for before, group in zip(
        groups, (g for optimizer in captured.optimizers(model) for g in optimizer.param_groups), strict=True
    ):
        assert (group["lr"], group["capturable"]) == (before["lr"], before["capturable"])
    with pytest.raises(ValueError, match="loc"):
        Normal(torch.tensor(float("nan")), torch.tensor(1.0))


def test_other_threads_read_their_numbers_at_once():
    values = []
    with ReadLater():
        thread = threading.Thread(target=lambda: values.append(torch.tensor(2.0).item()))
        thread.start()
        thread.join()
        later = np.mean([torch.tensor(3.0).item()])
    assert values == [2.0]
    assert isinstance(later, Later)
    assert float(later) == 3.0


def test_a_number_that_is_read_later_is_the_last_replay_s():
    tensor = torch.tensor(3.0)
    with ReadLater():
        later = tensor.item()
    tensor.fill_(7.0)
    assert float(later) == 7.0


def test_an_update_that_asks_is_launched_as_it_is_and_says_where(capsys):
    class Asking(DQN):
        def train(self, gradient_steps, batch_size=100):
            if bool(self.q_net.q_net[0].weight.sum() > 1e9):
                raise AssertionError
            super().train(gradient_steps, batch_size)

    plain, model, graphs = learner(Asking), learner(Asking), Rerun()
    one, each = updates(plain), updates(model, graphs)
    for _ in range(8):
        one.update()
        each.update()
        assert one.losses() == pytest.approx(each.losses(), rel=1e-5)
    assert (each.graphs, graphs.num_recorded, model._n_updates) == (None, 0, 8)
    said = capsys.readouterr().err
    assert said.count("without a CUDA graph: an update waits for the GPU at test_actorq_captured.py:") == 1


def test_a_graph_that_cannot_be_recorded_costs_no_update(capsys):
    class Broken(Rerun):
        def record(self, body):
            body()
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    class Uncounted(Broken):
        """As a stream that captures: Python runs, and no kernel."""

        def record(self, body):
            weights = copy.deepcopy(model.policy.state_dict()), copy.deepcopy(model.policy.optimizer.state_dict())
            try:
                super().record(body)
            finally:
                model.policy.load_state_dict(weights[0])
                model.policy.optimizer.load_state_dict(weights[1])

    plain, model = learner(DQN), learner(DQN)
    one, each = updates(plain), updates(model, Uncounted())
    for _ in range(8):
        one.update()
        each.update()
    assert (each.graphs, model._n_updates) == (None, 8)
    assert each.losses() == pytest.approx(one.losses(), rel=1e-5)
    assert (
        "without a CUDA graph: CUDA error: operation not permitted when stream is capturing\n"
        in capsys.readouterr().err
    )


def test_updates_are_recorded_anew_after_a_checkpoint():
    model, graphs = learner(SAC), Rerun()
    each = updates(model, graphs)
    for _ in range(5):
        each.update()
    facts, arrays = checkpoint_model.take(model)
    arrays = {name: array.copy() for name, array in arrays.items()}
    each.update()
    after = each.losses()
    checkpoint_model.give(model, facts, arrays)
    each.forget()
    assert each.losses().keys() == after.keys()  # those of the log
    for _ in range(5):
        each.update()
    assert graphs.num_recorded == 2
    steps = [float(s["step"]) for o in captured.optimizers(model) for s in o.state.values()]
    assert steps == [10.0] * len(steps)


SB3_ALONE = """
import sys
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
import gymnasium
class Zero(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (5,))
    action_space = gymnasium.spaces.Box(-1, 1, (2,))
    def reset(self, seed=None, options=None): return self.observation_space.sample(), {}
    def step(self, action): return self.observation_space.sample(), 0.0, False, False, {}
model = SAC.load(sys.argv[1], env=Zero(), device="cpu", custom_objects={"learning_starts": 4})
before = model._n_updates
model.learn(8, reset_num_timesteps=False)
assert model._n_updates > before
print("quarl" in sys.modules, [type(g["lr"]).__name__ for g in model.critic.optimizer.param_groups])
"""


@pytest.mark.slow
def test_stable_baselines3_alone_trains_what_was_saved_on(tmp_path):
    model = learner(SAC)
    each = updates(model, Rerun())
    for _ in range(6):
        each.update()
    model.save(tmp_path / "model.zip", exclude=["replay_buffer_class", "replay_buffer_kwargs", "replay_buffer"])
    words = [sys.executable, "-c", SB3_ALONE, str(tmp_path / "model.zip")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False ['float']\n"), done.stderr


def test_supports_follow_returns_whether_updates_are_recorded_or_not():
    """After ten updates every reward is 3,000: the upper end moves, to the same place."""
    said = ([], [])
    for graphs, lines in zip((None, Rerun()), said, strict=True):
        model = learner(D4PG, target_update_interval=5)
        model.say = lines.append
        each = updates(model, graphs)
        for number in range(40):
            if number == 10:
                model.replay_buffer.columns["reward"][:] = 3000
            each.update()
    assert len(said[0]) > 1
    assert said[0] == said[1]


def test_what_is_not_finite_is_seen_before_weights_leave(tmp_path, monkeypatch):
    """Nobody looks at the losses of recorded updates in between."""
    monkeypatch.setattr("quarl.actorq.learner.SHOWN_S", float("inf"))
    with poison.rig(tmp_path, publish_interval=10) as run:
        graphs = Rerun()
        run.learner.updates = updates(run.learner.model, graphs)
        run.train(15)
        assert (run.rollbacks, graphs.num_recorded, run.published) == (0, 1, 2)
        with torch.no_grad():
            next(iter(run.learner.model.policy.parameters()))[0, 0] = float("nan")
        run.train(4)
        assert run.rollbacks == 0
        run.train(11)
        assert (run.rollbacks, run.refused, run.not_finite, graphs.num_recorded) == (1, 0, 0, 2)
        assert run.sound()


@pytest.mark.parametrize(
    ("width", "multiplies", "dtype"), [(1024, True, "bf16"), (1023, True, "fp32"), (2048, False, "fp32")]
)
def test_auto_is_bf16_for_wide_layers_where_the_processor_multiplies_it(monkeypatch, capsys, width, multiplies, dtype):
    monkeypatch.setattr("quarl.algorithms.precision.multiplies", lambda _: multiplies)
    model = learner(DQN, policy_kwargs={"net_arch": [width]})
    assert (Precision.of(model, "auto").dtype, Precision.of(model, "fp32").dtype) == (dtype, "fp32")
    said = capsys.readouterr().err
    assert said.count("bf16, as a layer has 1,024 units") == (dtype == "bf16")


def test_auto_is_tf32_on_a_gpu_and_only_inside_an_update(capsys):
    model = learner(DQN)
    model.device = torch.device("cuda")
    assert chosen(model) == "tf32"
    assert "TF32" in capsys.readouterr().err
    precision = Precision("tf32", list(model.policy.parameters()))
    before = torch.backends.cuda.matmul.allow_tf32
    with precision.update():
        assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.mark.parametrize(
    ("dtype", "qat", "optimizer", "what"),
    [
        ("fp16", False, torch.optim.Adam, "fp16's loss scaling"),
        ("fp32", True, torch.optim.Adam, "--qat, whose ranges change"),
        ("fp32", False, torch.optim.RMSprop, "a step of RMSprop"),
    ],
)
def test_what_no_graph_holds_is_said_on_a_gpu_alone(capsys, dtype, qat, optimizer, what):
    model = learner(DQN, policy_kwargs={"optimizer_class": optimizer, "optimizer_kwargs": {}})
    precision = Precision.of(model, dtype)
    assert graphs_for(model, precision, qat=qat) is None
    assert capsys.readouterr().err == ""
    model.device = torch.device("cuda")
    assert graphs_for(model, precision, qat=qat) is None
    assert capsys.readouterr().err.endswith(f"launch kernel by kernel: a CUDA graph does not support {what}\n")


def test_a_study_s_learner_is_in_float32_on_every_machine(tmp_path):
    """A cell's key has what the study says, and the same key means the same run."""
    work = {"algo": "dqn", "env_id": "CartPole-v1", "precision": "int8", "seed": 0, "options": {"params": {}}}
    assert actorq_config(work, tmp_path).learner_dtype == "fp32"
    said = work | {"options": {"params": {}, "learner_dtype": "bf16"}}
    assert actorq_config(said, tmp_path).learner_dtype == "bf16"
