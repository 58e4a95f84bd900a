"""Jobs for the processes that decode: from the bytes of a file to prepared media."""

from facet.media.limits import MediaLimits
from facet.media.opening import open_picture
from facet.media.options import MediaOptions
from facet.media.pictures import prepare_picture
from facet.media.prepared import PreparedMedia
from facet.media.spec import PatchPictures, SquarePictures


def prepare_picture_file(
    data: bytes, spec: PatchPictures | SquarePictures, options: MediaOptions, limits: MediaLimits, where: str
) -> tuple[PreparedMedia, ...]:
    return prepare_picture(open_picture(data, limits, where), spec, options, data)
