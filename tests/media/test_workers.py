"""Processes that decode: what they prepare is the same, and what kills, hangs or floods one harms nobody else."""

import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from facet.errors import EngineError, RequestError
from facet.media.limits import MediaLimits
from facet.media.opening import open_picture
from facet.media.options import MediaOptions
from facet.media.pictures import prepare_picture
from facet.media.workers import MediaWorkers
from facet.prepared_media import MediaArray, PreparedMedia
from tests.media.families import media_spec
from tests.media.hostile_pictures import good_files

SELF = "tests.media.test_workers"
PREPARE = "facet.media.jobs.prepare_picture_file"


# Jobs.
def die() -> None:
    os._exit(3)


def hang() -> None:
    time.sleep(60)


def fail() -> None:
    raise KeyError("a bug")


def flood() -> list[PreparedMedia]:
    np.ones(5 << 30, np.uint8)
    return []


def write_a_file(path: str) -> list[PreparedMedia]:
    with open(path, "wb") as file:
        file.write(b"x" * 100)
    return []


def chatter() -> list[PreparedMedia]:
    print("to standard output")
    return [PreparedMedia(kind="image", content_key="k", num_tokens=os.getpid(), arrays={})]


@pytest.fixture(scope="module")
def workers() -> Iterator[MediaWorkers]:
    workers = MediaWorkers(1, max_seconds=60)
    yield workers
    workers.close()


def process_of(workers: MediaWorkers) -> int:
    return workers.run(f"{SELF}.chatter", where="it")[0].num_tokens


def test_a_picture_is_prepared_as_it_is_here(workers: MediaWorkers) -> None:
    data, spec, options = good_files()["jpeg"], media_spec("gemma4_e").pictures, MediaOptions(detail="low")
    assert spec is not None
    found = workers.run(PREPARE, data, spec, options, MediaLimits(), "it", where="it")
    assert found == prepare_picture(open_picture(data, MediaLimits()), spec, options, data)
    assert isinstance(found[0].arrays["patches"], MediaArray)


def test_a_refusal_comes_back_in_its_words(workers: MediaWorkers) -> None:
    spec = media_spec("gemma3").pictures
    with pytest.raises(RequestError, match=r"messages\[1\] is SVG") as caught:
        workers.run(PREPARE, b"<svg/>", spec, MediaOptions(), MediaLimits(), "messages[1]", where="messages[1]")
    assert caught.value.field == "messages"


def test_what_fails_costs_one_job(workers: MediaWorkers, tmp_path: object) -> None:
    """Of these only the first costs a process."""
    first = process_of(workers)
    with pytest.raises(RequestError, match=r"The picture could not be decoded\. Send"):
        workers.run(f"{SELF}.die", where="The picture")
    second = process_of(workers)
    assert second != first
    with pytest.raises(EngineError, match="a bug"):
        workers.run(f"{SELF}.fail", where="The picture")
    with pytest.raises(RequestError, match="more memory"):
        workers.run(f"{SELF}.flood", where="The picture")
    with pytest.raises(EngineError, match="OSError"):
        workers.run(f"{SELF}.write_a_file", f"{tmp_path}/out", where="The picture")
    assert process_of(workers) == second


def test_time_runs_out() -> None:
    workers = MediaWorkers(1, max_seconds=2.0)
    try:
        with pytest.raises(RequestError, match="took longer than 2 seconds"):
            workers.run(f"{SELF}.hang", where="The picture")
    finally:
        workers.close()


def test_threads_share_them(workers: MediaWorkers) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(process_of(workers))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
