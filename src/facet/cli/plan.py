"""`facet plan [MODEL]`: prints what fits on given hardware, as tables, JSON or a plot. Needs no GPU."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from facet.cli.flags import add_common_flags, add_config_flags, add_idle_flags
from facet.cli.models import model_config_from
from facet.config import EngineConfig, ServerConfig
from facet.engine.plan_config import PlanConfig
from facet.errors import CapacityError
from facet.large_imports import large_imports

if TYPE_CHECKING:
    from facet.engine.memory_plan import MemoryPlan


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("plan", help="compute what fits into a GPU's memory; needs no GPU")
    # The command line of a server is taken as it is; help lists what changes a plan.
    of_servers = {field.name for field in dataclasses.fields(ServerConfig)}
    of_engines = {field.name for field in dataclasses.fields(EngineConfig)}
    add_config_flags(parser, PlanConfig, unlisted=of_servers - of_engines)
    add_idle_flags(parser)
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    # Imported here: other commands need none of it.
    from facet.bench.plot import check_plot

    with large_imports():
        from facet.engine.memory_plan import make_plan
        from facet.engine.plan_advice import with_advice

    config = model_config_from(options, PlanConfig)
    check_plot(config.plot)
    try:
        plan = make_plan(config)
    except CapacityError as error:
        raise CapacityError(f"{config.model} does not fit: {with_advice(config, error)}") from None
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

    from facet.cli.plan_report import capacity_table, head_lines, kind_table, memory_table, notes, verdict

    console = Console()
    for line in head_lines(plan):
        console.print(line, highlight=False)
    for table in (memory_table(plan), kind_table(plan), capacity_table(plan)):
        console.print(table)
    for line in (*notes(plan), verdict(plan)):
        console.print(line, highlight=False)
