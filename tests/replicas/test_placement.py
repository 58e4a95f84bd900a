"""Who gets which GPUs."""

import pytest

from facet.config import ServerConfig
from facet.errors import ConfigError
from facet.replicas.placement import place_replicas

FOUR = ("0", "1", "2", "GPU-3")


@pytest.mark.parametrize(
    ("num_replicas", "ranks", "gpus", "expected"),
    [
        (3, 1, (), ["", "", ""]),
        (3, 1, FOUR, ["0", "1", "2"]),
        (2, 2, FOUR, ["0,1", "2,GPU-3"]),
    ],
)
def test_gpus_are_divided_in_order(num_replicas: int, ranks: int, gpus: tuple[str, ...], expected: list[str]) -> None:
    config = ServerConfig(data_parallel_size=num_replicas, tensor_parallel_size=ranks)
    assert [",".join(placement.gpus) for placement in place_replicas(config, gpus)] == expected


def test_replicas_share_a_gpu_whose_memory_is_divided() -> None:
    config = ServerConfig(data_parallel_size=4, gpu_memory_utilization=0.45)
    assert [placement.gpus for placement in place_replicas(config, ("0", "1"))] == [("0",), ("1",), ("0",), ("1",)]


@pytest.mark.parametrize(
    ("settings", "gpus", "words"),
    [
        ({"data_parallel_size": 0}, (), "--data-parallel-size is 0, but must be 1 or more."),
        ({"data_parallel_size": 2, "device": "cuda:1"}, FOUR, "--device cuda:1 names one GPU, but"),
        ({"data_parallel_size": 2, "device": "cuda"}, (), "this machine shows 0. Lower the sizes, or use --device cpu"),
        (
            {"data_parallel_size": 3, "tensor_parallel_size": 2},
            FOUR,
            "3 replicas of 2 GPUs each need 6 GPUs, but this machine shows 4. Lower --data-parallel-size to 2, or let "
            "2 replicas share a GPU with --gpu-memory-utilization 0.45.",
        ),
    ],
)
def test_what_cannot_be_placed_is_refused(settings: dict[str, int], gpus: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        place_replicas(ServerConfig(**settings), gpus)  # type: ignore[arg-type]
    assert words in str(error.value)
