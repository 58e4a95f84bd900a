"""Files that go with a message: the server finds in it what was attached, and others are refused in words."""

from pathlib import Path

import numpy as np
import pytest

from facet.chat.media_parts import MediaParts
from facet.cli import main
from facet.cli.attachments import read_attachment
from facet.cli.chat_commands import run_command
from facet.cli.conversation import Conversation
from facet.errors import ConfigError
from facet.media.sources import MediaSources
from tests.cli.scripted_server import scripted_server
from tests.media.hostile_pictures import good_files
from tests.media.sounds import encoded_video, tones, wav


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "it.png"
    path.write_bytes(good_files()["png"])
    return path


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_a_server_finds_the_file(kind: str, tmp_path: Path) -> None:
    files = {
        "image": lambda: good_files()["webp"],
        "audio": lambda: wav((tones(0.1, 16_000) * 32_000).astype(np.int16), 16_000),
        "video": lambda: encoded_video(3, 10),
    }
    path = tmp_path / "it"  # by its bytes, whatever its name
    path.write_bytes(files[kind]())
    parts, sources = MediaParts(kinds=("image", "audio", "video")), MediaSources()
    assert parts.take(read_attachment(str(path)), "it") == kind
    (found,) = parts.found
    data = sources.read_base64(found.data, "it") if found.data is not None else sources.read_url(str(found.url), "it")
    assert data == path.read_bytes()


def test_with_the_next_message_and_no_other(picture: Path) -> None:
    conversation = Conversation("it")
    said = f"Attached {picture} (picture). "
    assert "Nothing is attached" in run_command("/attach", conversation)
    assert run_command(f"/attach {picture}", conversation) == said + "1 file will go with your next message."
    assert run_command(f"/attach {picture}", conversation) == said + "2 files will go with your next message."
    assert run_command("/attach", conversation) == "2 files will go with your next message."
    conversation.say("What are these?")
    conversation.say("And now?")
    first, second = conversation.messages
    assert [part["type"] for part in first["content"]] == ["image_url", "image_url", "text"]
    assert second["content"] == "And now?"
    run_command(f"/attach {picture}", conversation)
    run_command("/clear", conversation)
    assert not conversation.attached


def test_refused(tmp_path: Path, picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="nowhere cannot be read: No such file"):
        read_attachment("/nowhere")
    (tmp_path / "it.pdf").write_bytes(b"%PDF-1.7")
    with pytest.raises(ConfigError, match=r"is a PDF\. Attach pictures, sound or video"):
        read_attachment(str(tmp_path / "it.pdf"))
    with scripted_server(["no"]) as server:
        for arguments, words in (
            (["complete", "--attach", str(picture), "What?"], "reads text only, no images"),
            (["complete", "--attach", str(picture), "--raw", "What?"], "--attach is for messages"),
        ):
            assert main([*arguments, "--url", server.url]) == 2
            assert words in capsys.readouterr().err
