"""`facet plan [MODEL]`: prints what fits on given hardware, as tables, JSON or a plot. Needs no GPU."""

import argparse
import json
from typing import TYPE_CHECKING

from facet.cli.flags import add_common_flags, add_config_flags
from facet.cli.models import model_config_from
from facet.config import PlanConfig

if TYPE_CHECKING:
    from facet.engine.memory_plan import MemoryPlan


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("plan", help="compute what fits into a GPU's memory; needs no GPU")
    add_config_flags(parser, PlanConfig)
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    # Imported here: other commands need none of it.
    from facet.bench.plot import check_plot
    from facet.engine.memory_plan import make_plan

    config = model_config_from(options, PlanConfig)
    check_plot(config.plot)
    plan = make_plan(config)
    if config.json:
        from facet.cli.plan_report import as_json

        print(json.dumps(as_json(plan), indent=2))
    else:
        _print_tables(plan)
    if config.plot is not None:
        from facet.cli.plan_plot import draw

        draw(config.plot, plan)
    return 0


def _print_tables(plan: "MemoryPlan") -> None:
    from rich.console import Console

    from facet.cli.plan_report import capacity_table, head_lines, kind_table, memory_table, notes

    console = Console()
    for line in head_lines(plan):
        console.print(line, highlight=False)
    for table in (memory_table(plan), kind_table(plan), capacity_table(plan)):
        console.print(table)
    for line in notes(plan):
        console.print(line, highlight=False)
