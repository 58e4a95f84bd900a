"""`facet doctor [MODEL]`: checks whether answers on this machine can be trusted, and prints a table or JSON."""

import argparse
import json

from facet.cli.flags import add_common_flags, add_config_flags
from facet.cli.models import model_config_from
from facet.doctor.config import DoctorConfig
from facet.large_imports import large_imports

EXIT_UNHEALTHY = 1


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "doctor", help="check that this machine computes a model correctly, alone and under load"
    )
    add_config_flags(parser, DoctorConfig)
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    # Imported here: other commands need none of it.
    from rich.console import Console

    from facet.progress import Bars

    with large_imports():
        from facet.doctor.examine import examine

    config = model_config_from(options, DoctorConfig)
    report = examine(config, Bars())
    if config.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        console = Console()
        for name, value in report.environment.items():
            console.print(f"{name}: {value}", highlight=False, markup=False)
        console.print(report.table())
        for explanation in report.explanations:
            console.print(explanation, highlight=False, markup=False)
        verdict = "Healthy" if report.is_healthy else "Not healthy: attach the output of --json to a bug report"
        console.print(f"{verdict}. {report.seconds:.0f} s.", highlight=False)
    return 0 if report.is_healthy else EXIT_UNHEALTHY
