"""TorchScript policies: read as text, against torch.jit.load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import require
from quarl.cli import main
from quarl.engines.numpy_operators import as_float
from quarl.errors import QuarlError
from quarl.policy.operators import Dense, L2Norm, Normalize
from quarl.readers import load
from refusals import refused
from sb3_archives import zipped
from stress.hostile.foreign import scripted

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Parts(nn.Module):
    """A normalizer, an estimator whose latent vector has length 1, and an actor that reads parts of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", 100 + torch.randn(1, 12))
        self.register_buffer("deviation", torch.rand(1, 12) + 0.5)
        self.image = nn.Sequential(nn.Conv2d(1, 2, 2, padding=1), nn.BatchNorm2d(2), nn.Hardtanh(), nn.AvgPool2d(2))
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.ELU(inplace=True), nn.Linear(16, 9), nn.Dropout(0.5))
        self.actor = nn.Sequential(nn.Linear(20, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softplus())

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / (self.deviation + 1e-2)
        velocity, latent, rest = torch.split(self.encoder(x), [3, 5, 1], dim=-1)
        latent = functional.normalize(latent, dim=-1)
        image = self.image(x.view(-1, 1, 3, 4)).mean([2, 3])
        parts = [x[:, 3:-1].detach(), velocity, latent, image, x[:, 2].unsqueeze(1), -0.5 * rest.tanh()]
        left, right = self.actor(torch.cat(parts, dim=-1)).contiguous().view(-1, 4).chunk(2, dim=1)
        return torch.cat([left.clamp(-1, 1), functional.leaky_relu(right, 0.2) + left], dim=1).flatten(1)


def script(folder: Path, code: str, change=nn.Module.eval, old: bytes = b"", new: bytes = b"") -> Path:
    """A TorchScript file with these lines in forward, in whose pickle bytes are replaced."""
    members = {n: d.replace(old, new) if n.endswith("data.pkl") else d for n, d in scripted(code, change).items()}
    (folder / "m.pt").write_bytes(zipped(members))
    return folder / "m.pt"


def assert_acts_as_torch(path: Path) -> None:
    policy, rng = load.read(path), np.random.default_rng(0)
    x = np.float32(rng.normal(scale=2, size=(1000, *policy.observation_shape)))
    with torch.no_grad():
        y = torch.jit.load(str(path)).eval()(torch.from_numpy(x)).numpy()
    assert np.abs(policy.head(as_float(policy, x)[policy.output]) - y).max() <= 1e-5 * np.ptp(y)


@pytest.mark.parametrize("kind", ["scripted", "traced", "frozen"])
def test_torchscript_acts_as_in_torch(kind, tmp_path):
    torch.manual_seed(0)
    module = Parts().eval()
    made = torch.jit.trace(module, torch.zeros(1, 12)) if kind == "traced" else torch.jit.script(module)
    (torch.jit.freeze(made) if kind == "frozen" else made).save(str(tmp_path / "m.pt"))
    assert_acts_as_torch(tmp_path / "m.pt")
    policy = load.read(tmp_path / "m.pt")
    assert {L2Norm, Normalize} <= {type(op) for op in policy.ops}
    assert kind == "frozen" or "encoder.0" in {op.name for op in policy.linear}


@pytest.mark.parametrize("name", ["go2-himloco.pt", "go2-robot-lab.pt"])
def test_sample_acts_as_in_torch(name):
    assert_acts_as_torch(require.folder("agents-wild") / "torchscript" / name)


@pytest.mark.parametrize("name", ["go2-himloco.pt", "go2-robot-lab.pt"])
@pytest.mark.slow
def test_sample_of_torchscript_becomes_verified_c(name, tmp_path, capsys):
    require.program("gcc")
    path = require.folder("agents-wild") / "torchscript" / name
    x = np.random.default_rng(0).normal(size=(300, *load.read(path).observation_shape))
    np.save(tmp_path / "seen.npy", np.float32(x))
    words = ["--to", "c", "--observations", str(tmp_path / "seen.npy"), "-o", str(tmp_path / "c")]
    assert main(["export", str(path), *words]) == 0
    assert main(["verify", str(tmp_path / "c")]) == 0
    assert "equal" in capsys.readouterr().out


def test_a_program_that_reads_parts_has_the_width_of_their_end(tmp_path):
    code = "return (self.2).forward(torch.cat([torch.slice(input, 1, 0, 3), torch.slice(input, 1, 4, 9)], 1), )"
    policy = load.read(script(tmp_path, code.replace("self.2", "getattr(self, '2')")))
    assert policy.observation_shape == (9,)
    assert type(policy.ops[-1]) is Dense
    assert not np.isfinite(policy.head.low).any()


FIRST = "a = (getattr(self, '0')).forward(input, )\n"
REFUSED = {
    "while True:\n  pass": "line 3: statement While is not read; export the policy without loops",
    "return torch.fft_fft(input)": r"\.py, line 3: operator torch\.fft_fft: it is not in the operator set",
    "return os.system('true')": "line 3: 'os' is not read",
    "return (self).forward(input, )": "nested too deeply",
    "return " + "-" * 9000 + "1": "is not TorchScript",
    "return " + "(" * 90 + "1" + ")" * 90: "too deep or too long",
    "return torch.expand(torch.zeros([1, 5]), [1000000000, 5])": "more than .* bytes",
    "self.training = True\nreturn input": "writes to 'self.training': only float tensors of the module",
    "_0 = torch.copy_((getattr(self, '0')).weight, input)\nreturn input": "the state '0.weight' is written, but",
    "if input:\n  pass\nreturn input": "line 3: a branch depends on the observation",
    FIRST + "return torch.div(a, 0.)": "line 4: operator torch.div: it divides by 0",
    FIRST + "return torch.add(a, torch.relu_(a))": "overwritten in place",
    FIRST + "b = torch.relu_(torch.view(a, [8]))\nreturn torch.add(a, b)": "overwritten in place",
    FIRST + "return torch.dropout(a, 0.5, True)": r"saved in training mode needs eval\(\)",
    "return input\f  def forward(self, x):\n    return x": "line 4: a second function is named forward",
    "return torch.slice(input, 1, -3)": "do not show the width of the observation",
}


@pytest.mark.parametrize(("code", "said"), REFUSED.items(), ids=range(len(REFUSED)))
def test_torchscript_beyond_the_set_is_refused_with_its_place(code, said, tmp_path):
    with pytest.raises(QuarlError, match=said) as raised:
        load.read(script(tmp_path, code))
    assert "\n" not in str(raised.value)
    assert str(raised.value).count("m.pt") >= 1


def test_half_precision_and_storages_out_of_range_are_refused(tmp_path):
    with pytest.raises(QuarlError, match="half precision"):
        load.read(script(tmp_path, FIRST + "return a", nn.Module.half))
    with pytest.raises(QuarlError, match="more numbers than the file holds"):
        load.read(script(tmp_path, FIRST + "return a", nn.Module.eval, b"K\x05t", b"K\xfft"))


def test_options_that_torchscript_decides_are_refused(tmp_path, capsys):
    line = refused(capsys, "inspect", script(tmp_path, FIRST + "return a"), "--output-name", "actions")
    assert "give it no option but --head" in line
