"""Any module over the operator set becomes the same function; what is outside is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quarl.engines.numpy_operators import as_float
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.graph import ActionHead
from quarl.policy.operators import Add, Concat, LayerNorm, Normalize, Scale
from quarl.readers.extract import from_module


class Branches(nn.Module):
    """Every operator of the set."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=1)
        self.left = nn.Sequential(nn.Linear(72, 6), nn.LayerNorm(6), nn.ELU(), nn.Dropout(0.5))
        self.right = nn.Sequential(nn.Linear(72, 6, bias=False), nn.Sigmoid(), nn.LeakyReLU())
        self.twice = nn.Linear(6, 6)
        self.register_buffer("gain", torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0, 5.0]))
        self.out = nn.Linear(12, 3)
        self.unused = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.conv(x.float() / 255.0)).flatten(1)
        left, right = self.left(features), self.right(features) * self.gain
        left = self.twice(self.twice(left)).tanh()
        joined = torch.cat([left + right, torch.clamp(right, -1, 1)], dim=-1)
        return self.out(joined).reshape(len(x), -1) * 2


def test_any_module_over_the_set_becomes_the_same_function():
    torch.manual_seed(0)
    module = Branches().train()
    policy = from_module(module, (2, 8, 5), head=ActionHead("argmax"), observation_dtype="uint8")
    assert module.left[3].training
    kinds = {type(op) for op in policy.ops}
    assert kinds >= {LayerNorm, Concat, Normalize, Scale, Add}
    assert [op.name for op in policy.linear] == ["conv", "left.0", "right.0", "twice", "twice.2", "out"]
    images = np.random.default_rng(0).integers(0, 256, (50, 2, 8, 5), np.uint8)
    with torch.no_grad():
        expected = module.eval()(torch.as_tensor(images)).numpy()
    np.testing.assert_allclose(as_float(policy, images)[policy.output], expected, rtol=0, atol=1e-5)


class Calls(nn.Module):
    """A layer followed by any function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.images = nn.Sequential(nn.Conv2d(1, 3, 1), nn.ReLU(), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
        self.register_buffer("narrow", torch.tensor([[1.0], [2.0]]))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.layer(x), self)


def overwritten(x: torch.Tensor, _: nn.Module) -> torch.Tensor:
    kept = x
    torch.relu_(x.view(-1, 4))
    return kept + 1 * kept


class First(nn.Module):
    """The first of several values."""

    def forward(self, x: Any) -> Any:
        return x[0]


REFUSED: list[tuple[str, Any, str]] = [
    ("softmax of log", lambda x, m: torch.log_softmax(x, -1) * 2, "aten.log_softmax.int"),
    ("in a module", nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Softsign())), r"'1.0' \(Softsign\) calls aten\."),
    ("celu", nn.Sequential(nn.Linear(4, 4), nn.CELU(0.5)), r"module '1' \(CELU\).*; use nn\.SiLU"),
    ("group norm", nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)), r"'1' \(GroupNorm\).*; use nn\.LayerNorm"),
    ("batch norm", nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)), "running statistics"),
    ("sine", lambda x, m: torch.sin(x), r"aten\.sin.*; use nn\.Linear, nn\.Conv2d"),
    ("softplus that is steeper", nn.Sequential(nn.Linear(4, 4), nn.Softplus(2)), r"Softplus\) calls aten\.softplus"),
    ("slopes by channel", lambda x, m: torch.prelu(x, torch.arange(4.0)), r"aten\.prelu.*takes several numbers"),
    ("noise", lambda x, m: x + torch.randn(4), "aten.randn"),
    ("mean of the batch", lambda x, m: x - x.mean(0, keepdim=True), "one row per observation"),
    ("mean of all", lambda x, m: x - x.mean(), "one row per observation"),
    ("rows swapped", lambda x, m: x.flatten(), "one row per observation"),
    ("product", lambda x, m: x * m.other(x), "only a constant can scale"),
    ("division by a value", lambda x, m: torch.ones(4) / x, "divides by a value"),
    ("division by zero", lambda x, m: x / 0, "divides by 0"),
    ("infinite", lambda x, m: x + float("inf"), "not finite"),
    ("scale of each row", lambda x, m: x * m.narrow, "mixes observations"),
    ("rows as columns", lambda x, m: x[:, :2] * x[:, 0], "mixes observations"),
    ("rows turned", lambda x, m: x[:, :2].transpose(0, 1), "mixes observations"),
    ("softmax of rows", lambda x, m: x[:, 0].softmax(0), "one row per observation"),
    ("empty clamp", lambda x, m: torch.clamp(x, 1, -1), "leave no number between them"),
    ("clamp by a value", lambda x, m: torch.clamp(x, min=m.other(x)), "must be constant"),
    ("image", lambda x, m: x.reshape(-1, 2, 2), r"returns \(2, 2\) for each"),
    ("layer of images", lambda x, m: x.view(-1, 2, 2) @ torch.eye(2), "flatten the value before"),
    ("two outputs", lambda x, m: (x, x), "returns 2 values: choose the policy's with output=0"),
    ("constant", lambda x, m: torch.ones(2, 3), "returns a constant"),
    ("argmax", lambda x, m: x.argmax(-1), "leave it out and return the scores"),
    ("largest", lambda x, m: torch.max(x, 1)[1], "leave it out and return the scores"),
    ("draw", lambda x, m: torch.multinomial(x.softmax(-1), 1), "leave it out and return the scores"),
    ("RNN", nn.Sequential(nn.RNN(4, 4), First()), r"aten\.rnn_tanh.*use nn\.LSTM or nn\.GRU"),
    ("layer in double", lambda x, m: (x.double() @ torch.eye(4).double()).float(), "torch.float64; convert to float32"),
    ("data-dependent", lambda x, m: x if x.sum() > 0 else -x, "torch.export cannot follow Calls"),
    ("half precision", lambda x, m: x.half(), r"aten\.to.*torch\.float16"),
    ("product of matrices", lambda x, m: x.view(-1, 1, 4) @ x.view(-1, 4, 1), "matmul.*multiplies two values"),
    *(
        (name, nn.Sequential(nn.Unflatten(1, (2, 2, 1)), nn.Conv2d(2, 2, 1, **options), nn.Flatten()), word)
        for name, options, word in (
            ("groups", {"groups": 2}, r"'1' \(Conv2d\) calls aten\.conv2d.*without groups"),
            ("dilation", {"dilation": 2}, "groups and dilation"),
            ("padding by name", {"padding": "same"}, "margins"),
        )
    ),
]


@pytest.mark.parametrize(("function", "word"), [pytest.param(f, w, id=name) for name, f, w in REFUSED])
def test_what_is_outside_the_set_is_refused_by_name(function: Any, word: str):
    module = function if isinstance(function, nn.Module) else Calls(function)
    with pytest.raises(UnsupportedError, match=word):
        from_module(module, (4,), head=ActionHead("argmax"))


def test_arithmetic_of_bytes_is_refused():
    """It wraps around."""

    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2).float()

    with pytest.raises(UnsupportedError, match=r"torch\.uint8; convert to float32 before it"):
        from_module(Doubled(), (4,), head=ActionHead("argmax"), observation_dtype="uint8")


FOLLOWED = {
    "in place": lambda x, m: m.other(torch.relu_(x)),
    "overwriting": overwritten,
    "matrix": lambda x, m: torch.addmm(m.other.bias, x.tanh() @ m.other.weight, m.other.weight.t()),
    "alpha": lambda x, m: torch.sub(x.tanh(), m.other(x), alpha=0.3),
    "repeated": lambda x, m: (torch.relu(x).view(-1, 4, 1) * torch.arange(3)).flatten(1),
    "to each": lambda x, m: (torch.relu(x).view(-1, 2, 2) + m.other(x)[:, :2].view(-1, 1, 2)).flatten(1),
    "channels": lambda x, m: torch.cat([x.view(-1, 2, 2), m.other(x).view(-1, 2, 2)], 1).transpose(1, 2).flatten(1),
    "length": lambda x, m: nn.functional.normalize(x, dim=-1),
    "images": lambda x, m: m.images(x.view(-1, 1, 2, 2)),
}


@pytest.mark.parametrize("name", list(FOLLOWED))
def test_calls_of_torch_compute_what_torch_does(name: str):
    torch.manual_seed(0)
    module = Calls(FOLLOWED[name]).eval()
    policy = from_module(module, (4,), head=ActionHead("argmax"))
    rows = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.as_tensor(rows)).numpy()
    np.testing.assert_allclose(as_float(policy, rows)[policy.output], expected, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_an_exported_program_is_read_as_the_module_that_it_was_made_of(strict: bool, whole: bool):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)).eval()
    module[1].running_mean.uniform_(-1, 1)
    rows, batch = torch.randn(20, 3), {0: torch.export.Dim("batch")}

    def read(dynamic: Any = (batch,), size: int = 4) -> Any:
        program = torch.export.export(module, (rows[:size],), dynamic_shapes=dynamic, strict=strict)
        return from_module(program if whole else program.module(), (3,), head=ActionHead("argmax"))  # type: ignore[arg-type]

    policy = read()
    expected = module(rows).detach().numpy()
    np.testing.assert_allclose(as_float(policy, rows.numpy())[policy.output], expected, rtol=0, atol=1e-5)
    # what was exported for training draws random numbers, or has the statistics of a batch
    module.train()
    with pytest.raises(UnsupportedError, match=r"^module '[13]' \("):
        read()


@pytest.mark.parametrize("other", [lambda x: x, {}, "net.pt", nn.Linear])
def test_what_is_not_a_module_is_one_line(other: Any):
    with pytest.raises(QuarlError, match=r"^module is a .*: give an nn.Module, or an ExportedProgram of one$"):
        from_module(other, (3,), head=ActionHead("argmax"))
