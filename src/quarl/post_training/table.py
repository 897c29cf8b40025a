"""`quarl.ptq`: what the verb of that name measures, as an object in Python."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Unpack

from rich.console import Console

from quarl.api import Agent, agent_of
from quarl.arguments import check, checks_keywords
from quarl.envs.environment import EnvironmentKeywords, home_of, in_environment
from quarl.errors import QuarlError
from quarl.policy.graph import is_quantized
from quarl.post_training.layer_bits import choose
from quarl.post_training.measure import PtqRow
from quarl.progress import progress
from quarl.quant.spec import Mode
from quarl.report import assessment, schema, tables
from quarl.specs import EngineName, PtqSpec

if TYPE_CHECKING:
    import pandas

KEYWORDS = {"bits": "precisions", "edge-bits": "edge_bits", "workers": "num_workers"}
"""Of `ptq`, by the option of `quarl ptq` where that has another name."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PtqTable:
    """What each precision costs and gains: a PtqRow each, fp32's first, shown as `quarl ptq` prints them.

    >>> [(row.precision, row.mean) for row in table][:2]
    [('fp32', 500.0), ('int8', 500.0)]
    """

    title: str
    rows: tuple[PtqRow, ...]
    agents: Mapping[str, Agent]
    """By their precision in the rows: `table.agents["int8"].save("policy.tflite")`."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[PtqRow]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> PtqRow:
        return self.rows[index]

    def __repr__(self) -> str:
        console = Console(width=tables.FILE_WIDTH, color_system=None)
        with console.capture() as drawn:
            console.print(tables.terminal(self._cells(), self.title))
        return "\n".join(map(str.rstrip, drawn.get().splitlines()))

    def _repr_html_(self) -> str | None:
        with contextlib.suppress(ModuleNotFoundError):  # notebooks show the text, then
            from quarl.report import page

            return page.fragment(self._cells(), self.title)
        return None

    @property
    def verdicts(self) -> list[str]:
        """What the rows show, in sentences: which precisions are non-inferior to fp32, and which differ beyond noise.

        >>> table.verdicts[0]
        'int8 with scheme default is non-inferior to fp32 within 5 %.'
        """
        return assessment.assess(schema.fields(self.rows))

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row for each precision and a column for each field that rows have in JSON.

        QuarlError where pandas is not installed.

        >>> table.to_pandas().set_index("precision").verdict["int8"]
        'non-inferior'
        """
        try:
            import pandas
        except ImportError:
            raise QuarlError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(schema.fields(self.rows))

    def _cells(self) -> tables.Cells:
        return tables.cells(PtqRow, schema.fields(self.rows))


@checks_keywords
def ptq(
    agent: Agent | str | os.PathLike[str],
    precisions: Sequence[str | int] = PtqSpec.bits,
    *,
    episodes: int | Literal["auto"] = PtqSpec.episodes,
    scheme: str = "default",
    mode: Mode = "dynamic",
    margin: float = PtqSpec.margin,
    auto: bool = False,
    max_loss: float = 2.0,
    minimize: Literal["bytes", "latency"] = "bytes",
    max_episodes: int | None = None,
    seed: int = 0,
    engine: EngineName = "litert",
    num_workers: int = 1,
    edge_bits: int | str = PtqSpec.edge_bits,
    **where: Unpack[EnvironmentKeywords],
) -> PtqTable:
    """The table that `quarl ptq` prints: return, error, verdict, latency and size of the agent at each precision.

    No file is written. QuarlError as of `quantize` and `evaluate`, whose keywords mean the same here.

    agent: in float32, or the path of one.
    precisions: as `Agent.quantize` takes them; fp32 is always among them.
    edge_bits: of the first and the last layers where a precision asks for fewer; "same": one width in all layers.
    episodes: at each precision, from the same starts; "auto" plays until there is a verdict, or `max_episodes`.
    margin: loss of return, in percent of fp32's, that is still acceptable.
    auto: chooses bits for each layer instead, as "mixed": the fewest, or the fastest, that fresh episodes, at most
    `max_episodes`, show to lose less than `max_loss` percent. QuarlError where they do not even show it of int8.

    >>> table = quarl.ptq(agent, [8, 2], episodes=20)
    >>> table.agents["int2e8"]
    Agent(dqn CartPole-v1, int2e8 dynamic, 4-256-256-2, 67,072 weights)
    """
    policy = agent_of(agent, where.get("frame_stack")).policy
    if is_quantized(policy):
        raise QuarlError(f"this policy is {policy.spec.precision} already; measure the fp32 one")
    words = [precisions] if isinstance(precisions, str | int) else precisions
    if not words:
        raise QuarlError("precisions names none: give one or more, as in [8, 4]")
    spec = PtqSpec(
        bits=tuple(map(str, words)),
        edge_bits=str(edge_bits),
        scheme=(scheme,),
        mode=mode,
        engine=engine,
        episodes=episodes,
        margin=margin,
        auto=auto,
        max_loss=f"{max_loss:g}%" if isinstance(max_loss, int | float) else str(max_loss),
        minimize=minimize,
        max_episodes=max_episodes,
        workers=num_workers,
        seed=seed,
    )
    check(spec, KEYWORDS)
    policy, environment = in_environment(policy, **where)
    with progress(spec.num_episodes) as bar:
        cells, _, _ = choose(policy, environment or home_of(policy), spec, bar)
    return PtqTable(
        title=policy.provenance.title(cells[0].evaluation.env_id),
        rows=tuple(cell.row for cell in cells),
        agents={cell.row.precision: Agent(cell.policy) for cell in cells},
    )
