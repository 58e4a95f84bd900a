"""A model's name becomes a folder, or one line that says why not. No test here touches a network."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from facet.config import ModelConfig
from facet.errors import CheckpointError
from facet.model.hub import CONFIG_ONLY, WHOLE_MODEL, HubAccess, folder_of, local_folder
from tests.cached_models import write_cached_model

# The hub's errors carry a response of whichever HTTP library its version is built on.
RESPONSE: Any = SimpleNamespace(headers={}, request=None, status_code=404)
Download = Callable[..., str]


class TransportError(Exception):
    """What a library below the hub's might raise."""


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> Callable[[Download], None]:
    """Puts a function in the place of the download."""

    def replace(function: Download) -> None:
        monkeypatch.setattr(huggingface_hub, "snapshot_download", function)

    replace(lambda *_, **__: pytest.fail("this name should not have reached the hub"))
    return replace


def refusal(model: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        local_folder(model)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


@pytest.mark.usefixtures("download")
class TestPaths:
    def test_a_folder(self, tmp_path: Path) -> None:
        assert local_folder(str(tmp_path)) == tmp_path

    def test_a_relative_folder_that_looks_like_a_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "google" / "gemma").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert local_folder("google/gemma") == Path("google/gemma")

    def test_a_folder_at_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "gemma").mkdir()
        assert local_folder("~/gemma") == tmp_path / "gemma"

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        assert "give the folder that holds config.json" in refusal(str(tmp_path / "config.json"))

    @pytest.mark.parametrize(
        "model",
        [
            "/no/such/folder",
            "./gemma",
            "../x/gemma",
            "~/no-such-folder",
            "~nobody-of-that-name/x",
            "gemma",
            "a/b/c",
            "owner/",
            "owner/na me",
            "own er/name",
            "owner/name?",
            "owner/" + "n" * 200,
            "a" * 5000,
            "https://huggingface.co/owner/name",
            "o\nwner/name",
            "bad\0/name",
        ],
        ids=lambda model: repr(model)[:30],
    )
    def test_neither_a_folder_nor_a_name(self, model: str) -> None:
        assert "neither a folder nor the name of a model" in refusal(model)


class TestDownloads:
    def test_what_is_asked_of_the_hub(self, download: Callable[[Download], None], tmp_path: Path) -> None:
        asked: list[tuple[Any, ...]] = []

        def answer(model: str, *, revision: str | None, allow_patterns: list[str], **more: object) -> str:
            asked.append((model, revision, tuple(allow_patterns), more["cache_dir"], more["token"]))
            return str(tmp_path)

        download(answer)
        (tmp_path / "config.json").touch()
        assert local_folder("google/gemma-4-E4B-it", revision="main") == tmp_path
        assert local_folder("google/gemma-4-E4B-it", patterns=CONFIG_ONLY) == tmp_path
        config = ModelConfig(model="google/gemma-4-E4B-it", download_dir="/models", hf_token="secret")
        assert folder_of(config) == tmp_path
        assert asked == [
            ("google/gemma-4-E4B-it", "main", WHOLE_MODEL, None, None),
            ("google/gemma-4-E4B-it", None, CONFIG_ONLY, None, None),
            ("google/gemma-4-E4B-it", None, WHOLE_MODEL, "/models", "secret"),
        ]

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (errors.GatedRepoError("gated", response=RESPONSE), "accept its licence"),
            (errors.RepositoryNotFoundError("none", response=RESPONSE), "There is no model owner/name"),
            (errors.RevisionNotFoundError("none", response=RESPONSE), "no revision"),
            (errors.LocalEntryNotFoundError("offline"), "Check the network"),
            (errors.OfflineModeIsEnabled("offline"), "Check the network"),
            (errors.HfHubHTTPError("500\nserver", response=RESPONSE), "Check the network"),
            (TransportError("peer closed connection\nwithout a word"), "Check the network"),
            (ConnectionError("reset"), "Check the network"),
            (errors.HFValidationError("Repo id must be ..."), "neither a folder nor the name of a model"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
    )
    def test_what_goes_wrong(self, download: Callable[[Download], None], error: Exception, words: str) -> None:
        def fail(*_: object, **__: object) -> str:
            raise error

        download(fail)
        assert words in refusal("owner/name")

    def test_a_full_disk_is_not_a_network_fault(self, download: Callable[[Download], None]) -> None:
        def fail(*_: object, **__: object) -> str:
            raise OSError(28, "No space left on device")

        download(fail)
        message = refusal("owner/name")
        assert "No space left on device" in message
        assert "HF_HOME" in message
        assert "network" not in message


class TestWithoutNetwork:
    """The library itself, which is told that there is no network."""

    @pytest.fixture(autouse=True)
    def offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def test_what_was_downloaded_is_found(self, tmp_path: Path) -> None:
        folder = write_cached_model(tmp_path, "owner/name", {"config.json": "{}", "model.safetensors": ""})
        assert local_folder("owner/name", access=HubAccess(str(tmp_path))) == folder
        with pytest.raises(CheckpointError, match="Check the network"):
            local_folder("owner/other", access=HubAccess(str(tmp_path)))

    def test_so_is_a_gguf_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.towers: list[tuple[Path | None, list[Path]]] = []

        def unfold(path: Path, towers: Path | None = None, *, beside: Sequence[Path] = ()) -> Path:
            self.towers.append((towers, list(beside)))
            return path

        monkeypatch.setattr("facet.model.gguf.folder.unfold", unfold)
        folder = write_cached_model(tmp_path, "owner/name", {"a-Q4_0.gguf": "", "a-Q8_0.gguf": ""})
        assert local_folder("owner/name:Q8_0", access=HubAccess(str(tmp_path))) == folder / "a-Q8_0.gguf"


class TestGguf:
    """Files of a folder or a repository. What is chosen is unfolded by a stand-in that returns it."""

    @pytest.fixture(autouse=True)
    def unfolded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.towers: list[tuple[Path | None, list[Path]]] = []

        def unfold(path: Path, towers: Path | None = None, *, beside: Sequence[Path] = ()) -> Path:
            self.towers.append((towers, list(beside)))
            return path

        monkeypatch.setattr("facet.model.gguf.folder.unfold", unfold)

    def repository(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> list[tuple[str, ...]]:
        """Puts a repository with these files on the hub; returns what will have been downloaded."""
        asked: list[tuple[str, ...]] = []

        def download(model: str, *, revision: str | None, allow_patterns: list[str], **_: object) -> str:
            asked.append(tuple(allow_patterns))
            return str(folder)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, model, revision: list(names))
        return asked

    def test_the_only_file_of_a_folder(self, tmp_path: Path) -> None:
        for name in ("gemma-Q4_0.gguf", "mmproj-gemma.gguf", "README.md"):
            (tmp_path / name).touch()
        assert local_folder(str(tmp_path)) == tmp_path / "gemma-Q4_0.gguf"
        assert local_folder(str(tmp_path), towers=None) == tmp_path / "gemma-Q4_0.gguf"
        assert self.towers == [(None, [tmp_path / "mmproj-gemma.gguf"]), (None, [])]
        (tmp_path / "gemma-Q8_0.gguf").touch()
        assert "has several GGUF files: gemma-Q4_0.gguf, gemma-Q8_0.gguf. Name one" in refusal(str(tmp_path))
        (tmp_path / "model.safetensors").touch()
        assert local_folder(str(tmp_path)) == tmp_path

    def test_the_first_of_several_parts(self, tmp_path: Path) -> None:
        for part in (1, 2, 3):
            (tmp_path / f"gemma-{part:05}-of-00003.gguf").touch()
        assert local_folder(str(tmp_path)) == tmp_path / "gemma-00001-of-00003.gguf"

    @pytest.mark.parametrize(
        ("asked_for", "chosen"),
        [
            ("Q4_0", "gemma-4-E4B-it-Q4_0.gguf"),
            ("q4_0", "gemma-4-E4B-it-Q4_0.gguf"),
            ("Q4_K_M", "gemma-4-E4B-it-Q4_K_M.gguf"),
            ("gemma-4-E4B-it-BF16.gguf", "gemma-4-E4B-it-BF16.gguf"),
            ("UD-Q4_K_XL", "big/gemma-UD-Q4_K_XL-00001-of-00002.gguf"),
        ],
    )
    def test_a_file_of_a_repository(
        self, asked_for: str, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"gemma-4-E4B-it-{type}.gguf" for type in ("BF16", "Q4_0", "Q4_K_M", "Q4_K_S")]
        split = [f"big/gemma-UD-Q4_K_XL-{part:05}-of-00002.gguf" for part in (1, 2)]
        asked = self.repository(monkeypatch, tmp_path, *names, *split, "mmproj-BF16.gguf", "README.md")
        assert local_folder(f"owner/name:{asked_for}") == tmp_path / chosen
        assert asked == [(chosen.replace("-00001-of-", "-*-of-"), "mmproj-BF16.gguf")]
        assert self.towers == [(None, [tmp_path / "mmproj-BF16.gguf"])]

    def test_a_repository_of_one_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = self.repository(monkeypatch, tmp_path, "model-q4_0.gguf", "mmproj-model.gguf")
        assert local_folder("google/gemma-qat-q4_0-gguf") == tmp_path / "model-q4_0.gguf"
        assert asked == [WHOLE_MODEL, ("model-q4_0.gguf", "mmproj-model.gguf")]

    def test_towers_of_a_repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        towers = [f"mmproj-{type}.gguf" for type in ("F32", "F16", "BF16")]
        asked = self.repository(monkeypatch, tmp_path, "a-Q4_0.gguf", *towers)
        own = tmp_path / "own.gguf"
        for path in (own, *(tmp_path / name for name in towers)):
            path.touch()
        for given in ("auto", None, "F16", "mmproj-F32.gguf", str(own)):
            local_folder("owner/name:Q4_0", towers=given)
        files = [("mmproj-BF16.gguf",), (), ("mmproj-F16.gguf",), ("mmproj-F32.gguf",), ()]
        assert asked == [("a-Q4_0.gguf", *each) for each in files]
        named = [None, None, tmp_path / "mmproj-F16.gguf", tmp_path / "mmproj-F32.gguf", own]
        assert [towers for towers, _ in self.towers] == named
        assert [len(beside) for _, beside in self.towers] == [1, 0, 0, 0, 0]

    def test_what_is_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.repository(monkeypatch, tmp_path, "a-Q4_0.gguf", "a-Q8_0.gguf")
        assert "owner/name on the hub has no GGUF file 'Q6_K'. It has a-Q4_0.gguf, a-Q8_0" in refusal("owner/name:Q6_K")
        assert "has several GGUF files" in refusal("owner/name")
        with pytest.raises(CheckpointError, match=r"on the hub has no GGUF file 'BF16'. It has none"):
            local_folder("owner/name:Q8_0", towers="BF16")
        self.repository(monkeypatch, tmp_path, "README.md")
        assert "neither a config.json nor a GGUF file" in refusal("owner/name")
        assert "neither a folder nor the name" in refusal("owner/name:")
        assert "neither a folder nor the name" in refusal("owner/name:a b")
