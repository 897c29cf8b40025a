"""`quarl.ptq`: the results of the verb `quarl ptq` as a Python object."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Unpack

from numpy.typing import ArrayLike
from rich.console import Console

from quarl.api import Agent, agent_of
from quarl.arguments import check, checks_keywords, recorded_rows
from quarl.arrays import Array
from quarl.envelope import asked
from quarl.envs.environment import EnvironmentKeywords, in_environment
from quarl.errors import QuarlError, extras
from quarl.policy.graph import is_quantized
from quarl.post_training.layer_bits import choose
from quarl.post_training.measure import PtqRow
from quarl.progress import progress
from quarl.quant.schemes import typed_by_user
from quarl.quant.spec import Mode
from quarl.report import assessment, schema, tables
from quarl.specs import PATH, EngineName, PtqSpec

if TYPE_CHECKING:
    import pandas

KEYWORDS = {"bits": "precisions", "edge-bits": "edge_bits", "workers": "num_workers"}
"""Keywords of `ptq` by the option of `quarl ptq`, if the two differ."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PtqTable:
    """A table with one PtqRow per precision, fp32's first, displayed as `quarl ptq` prints it.

    >>> [(row.precision, row.mean) for row in table][:2]
    [('fp32', 500.0), ('int8', 500.0)]
    """

    title: str
    """Title of the table: the agent and its environment."""
    rows: tuple[PtqRow, ...]
    """Results of the precisions, fp32's first."""
    agents: Mapping[str, Agent]
    """Agents by their precision in the rows: `table.agents["int8"].save("policy.tflite")`."""

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
        with contextlib.suppress(ModuleNotFoundError):  # notebooks then show the text
            from quarl.report import page

            return page.fragment(self._cells(), self.title)
        return None

    @property
    def verdicts(self) -> list[str]:
        """Sentences that name the precisions non-inferior to fp32, and those that differ beyond noise.

        >>> table.verdicts[0]
        'int8 with scheme default is non-inferior to fp32 within 5 %.'
        """
        return assessment.assess(schema.fields(self.rows))

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each precision and a column for each field of the JSON rows.

        Raises QuarlError if pandas is not installed; the extra `report` has it.

        >>> table.to_pandas().set_index("precision").verdict["int8"]
        'non-inferior'
        """
        with extras("to_pandas"):
            import pandas
        return pandas.DataFrame(schema.fields(self.rows))

    def to_latex(self) -> str:
        r"""Return the table for a LaTeX document with the packages booktabs and, if it is wide, graphicx.

        The caption names the version of QuaRL.

        >>> table.to_latex().splitlines()[-1]
        '\\end{table}'
        """
        return tables.to_latex(self._cells(), self.title)

    def _cells(self) -> tables.Cells:
        return tables.cells(type(self.rows[0]), schema.fields(self.rows))


@checks_keywords
def ptq(
    agent: Agent | str | os.PathLike[str],
    precisions: Sequence[str | int] = PtqSpec.bits,
    *,
    episodes: int | Literal["auto"] = PtqSpec.episodes,
    scheme: str = "default",
    mode: Mode = "dynamic",
    symmetric_activations: bool = False,
    margin: float = PtqSpec.margin,
    success_margin: float = PtqSpec.success_margin,
    auto: bool = False,
    max_loss: float = 2.0,
    minimize: Literal["bytes", "latency"] = "bytes",
    max_episodes: int | None = None,
    seed: int = 0,
    engine: EngineName = "litert",
    num_workers: int = 1,
    edge_bits: int | str = PtqSpec.edge_bits,
    observations: ArrayLike | dict[str, Array] | None = None,
    envelope: str | ArrayLike | dict[str, Array] = PATH,
    **where: Unpack[EnvironmentKeywords],
) -> PtqTable:
    """Measure an agent at several precisions: return, error, verdict, latency and size, as `quarl ptq` does.

    No file is written.

    Args:
        agent: The agent in float32, or its path.
        precisions: Precisions, as in `Agent.quantize`; fp32 is always added.
        episodes: Number of episodes at each precision, from the same starts; "auto" plays until there is a verdict, or
            `max_episodes`.
        scheme: Name of the quantization scheme, which turns weights into codes.
        mode: "dynamic" quantizes activations per row at run time, "static" on grids calibrated beforehand.
        symmetric_activations: Give the grids of static mode zero point 0, as TensorRT requires.
        margin: Acceptable loss of return in percent of fp32's.
        success_margin: Acceptable loss of successes in percentage points, if the environment reports them.
        auto: Choose bits for each layer instead of `precisions`; the result is called "mixed". It has the fewest bits,
            or the lowest latency, that fresh episodes show to lose less than `max_loss`.
        max_loss: Allowed loss with `auto`, in percent of fp32's return.
        minimize: Quantity that `auto` minimizes: "bytes" or "latency".
        max_episodes: Maximum number of episodes with "auto" or `auto`; None means the default of `quarl ptq`.
        seed: Seed of calibration and evaluation.
        engine: Name of the engine that runs the policies.
        num_workers: Number of processes that share the episodes.
        edge_bits: Minimum bits of the first and the last layers; "same" means one width in all layers.
        observations: Raw observations [N, ...] in the order of time, in place of an environment. Nothing is played: the
            first nine tenths calibrate, and the table has the errors of actions on the last tenth, and no return.
        envelope: States that the grids of static mode cover, as in `quantize`.
        env_id: The environment; None means the one that the policy was trained in.
        env_kwargs: Arguments of the environment, in addition to those that the policy records.
        wrappers: Wrappers in place of the policy's, the outermost last: names, as in "AtariWrapper", or (name,
            arguments).
        frame_stack: Number of stacked observations in place of the policy's; 1 means no stacking.
        max_episode_steps: Time limit in steps, in place of the policy's or the registered one.
        env: A live environment to play in, as in `evaluate`.

    Returns:
        The table, which contains the quantized agents, too.

    Raises:
        QuarlError: An option is invalid, as in `quantize` and `evaluate`, or with `auto` the episodes cannot even show
            that int8 loses less than `max_loss`.

    >>> table = quarl.ptq(agent, [8, 2], episodes=20)
    >>> table.agents["int2e8"]
    Agent(dqn CartPole-v1, int2e8 dynamic, 4-256-256-2, 67,072 weights)
    """
    policy = agent_of(agent, where.get("frame_stack")).policy
    if is_quantized(policy):
        raise QuarlError(f"this policy is {policy.spec.precision} already; measure the fp32 one")
    words = [precisions] if isinstance(precisions, str | int) else precisions
    spec = PtqSpec(
        bits=tuple(map(str, words)),
        edge_bits=str(edge_bits),
        scheme=(typed_by_user(scheme),),
        mode=mode,
        symmetric_activations=symmetric_activations,
        engine=engine,
        episodes=episodes,
        margin=margin,
        success_margin=success_margin,
        auto=auto,
        max_loss=f"{max_loss:g}%" if isinstance(max_loss, int | float) else str(max_loss),
        minimize=minimize,
        max_episodes=max_episodes,
        workers=num_workers,
        seed=seed,
    )
    check(spec, KEYWORDS)
    policy, environment = in_environment(policy, **where)
    recorded = None if observations is None else recorded_rows(policy, observations)
    covered = asked(policy, envelope, mode)
    if recorded is not None and (auto or any(where.values())):
        raise QuarlError(
            "observations replace an environment and its returns: drop auto and the environment's keywords"
        )
    with progress(spec.num_episodes if recorded is None else None) as bar:
        cells, _, _ = choose(policy, environment, spec, bar, recorded=recorded, envelope=covered)
    played = cells[0].evaluation
    return PtqTable(
        title=policy.provenance.title(played.env_id if played else None),
        rows=tuple(cell.row for cell in cells),
        agents={cell.row.precision: Agent(cell.policy) for cell in cells},
    )
