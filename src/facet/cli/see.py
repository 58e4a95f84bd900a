"""`facet see PICTURE`: writes a picture as a model sees it, with a grid of its soft tokens, and prints its cost."""

import argparse
from pathlib import Path

from facet.cli.flags import add_common_flags
from facet.errors import ConfigError, UserError
from facet.media.options import MediaOptions, check_options, read_budget
from facet.media.spec import BUDGETS, MediaSpec, PatchPictures
from facet.media.spec_file import read_media_spec, usual_gemma4
from facet.model.config_fields import PROCESSOR_FILES
from facet.model.hub import CONFIG_ONLY, local_folder


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("see", help="show a picture as a model sees it, and how many tokens it costs")
    parser.add_argument("picture", metavar="PICTURE", help="file with a picture: PNG, JPEG, WebP, GIF or BMP")
    parser.add_argument("--model", metavar="MODEL", help="folder or name of a checkpoint; default: as Gemma 4 does")
    parser.add_argument("--output", metavar="FILE", help="file to write; default: PICTURE with .seen.png")
    parser.add_argument("--detail", choices=("low", "auto", "high"), help="as in a request")
    parser.add_argument("--max-soft-tokens", type=int, metavar="INT", help=f"one of {', '.join(map(str, BUDGETS))}")
    parser.add_argument("--pan-and-scan", action="store_true", help="also in crops, in models that can (Gemma 3)")
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    # Imported here: other commands need neither numpy nor Pillow.
    from facet.media.limits import MediaLimits
    from facet.media.opening import open_picture
    from facet.media.pictures import prepare_picture, token_grid
    from facet.media.view import draw_view, grid_of

    spec = _spec(options.model)
    if spec.pictures is None:
        raise ConfigError(f"{options.model} reads no pictures. Name a model that does, such as google/gemma-4-E4B-it.")
    asked = MediaOptions(
        detail=options.detail,
        max_soft_tokens=read_budget(options.max_soft_tokens, "--max-soft-tokens", "--max-soft-tokens"),
        pan_and_scan=options.pan_and_scan or None,
    )
    check_options(asked, spec, "--max-soft-tokens")
    path = Path(options.picture)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}). Check the path.") from None
    image = open_picture(data, MediaLimits(), str(path))
    media = prepare_picture(image, spec.pictures, asked, data)
    view = draw_view(media, spec.pictures)
    output = Path(options.output) if options.output else path.with_name(path.name + ".seen.png")
    try:
        view.save(output, "PNG")
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror}). Choose another --output.") from None
    rows, columns = grid_of(media[0], spec.pictures)
    crops = f", and as much for each of {len(media) - 1} crops" if len(media) > 1 else ""
    print(f"{path}: {image.width} x {image.height} pixels")
    print(f"{rows} rows of {columns} soft tokens = {media[0].num_tokens}{crops}")
    print(f"cost in a prompt: {sum(one.num_tokens + 2 for one in media)} tokens, with those before and after")
    if isinstance(spec.pictures, PatchPictures):
        grids = {budget: token_grid(image.height, image.width, budget, spec.pictures.token_size) for budget in BUDGETS}
        costs = ", ".join(f"{budget}: {rows * columns}" for budget, (rows, columns) in grids.items())
        print(f"soft tokens by --max-soft-tokens: {costs}")
    print(f"written: {output}")
    return 0


def _spec(model: str | None) -> MediaSpec:
    if model is None:
        return usual_gemma4()
    return read_media_spec(local_folder(model, patterns=(*CONFIG_ONLY, *PROCESSOR_FILES)))
