"""Pictures, sound and video on the page, in Chromium: chosen, dropped and pasted, shown, sent and remembered."""

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.media.hostile_pictures import good_files
from tests.media.sounds import tones, wav
from tests.prompts.media_models import make_gemma4
from tests.server.conftest import Scripted
from tests.server.page_in_browser import Page, start
from tools.webdriver import Browser

PNG = good_files()["png"]
COST = ".attachment .cost"


@pytest.fixture(scope="module")
def page(browser: Browser, scripted: Scripted) -> Iterator[Page]:
    asked = make_gemma4()
    assert asked.tokenizer is not None
    model = {name: getattr(asked, name) for name in ("tokenizer", "template", "media")} | {"eos_token_ids": (1,)}
    with scripted([40, 41, 1], model=model) as (server, engine):
        yield Page(browser, server, engine, asked.tokenizer)
        browser.open("about:blank")


@pytest.fixture(autouse=True)
def _fresh(page: Page) -> Iterator[None]:
    start(page.browser, page.server)
    page.browser.wait_for("#attach")
    yield
    assert page.browser.console() == []


def hand(page: Page, event: str, *files: tuple[str, str, bytes], text: str = "") -> None:
    """Gives files to the page as a hand does that drags or pastes them."""
    page.browser.run(
        "const [name, files, text] = arguments, data = new DataTransfer();"
        "for (const [name, type, body] of files) data.items.add("
        "  new File([Uint8Array.from(atob(body), each => each.charCodeAt())], name, {type}));"
        "if (text) for (const type of ['text/plain', 'text/html']) data.setData(type, text);"
        "const how = {bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data};"
        "document.getElementById('message').dispatchEvent("
        "  name === 'paste' ? new ClipboardEvent(name, how) : new DragEvent(name, how))",
        event,
        [[name, kind, base64.b64encode(body).decode()] for name, kind, body in files],
        text,
    )


def test_pictures_and_sound_are_sent_and_remembered_small(page: Page, tmp_path: Path) -> None:
    (tmp_path / "small.png").write_bytes(PNG)
    (tmp_path / "clip.wav").write_bytes(wav((tones(0.7, 16_000) * 32_000).astype(np.int16), 16_000))
    page.browser.upload("#files", tmp_path / "small.png", tmp_path / "clip.wav")
    page.browser.wait_for("#tray .attachment:nth-child(1) .cost", " tokens")
    page.browser.wait_for("#tray .attachment:nth-child(2) .cost", " tokens")
    texts = page.browser.run("return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)", COST)
    costs = [int(text.removesuffix(" tokens")) for text in texts]
    assert page.browser.run("return document.querySelector('#tray img').naturalWidth") == 128
    page.browser.resize(320, 640)
    ends = (
        "return ['attach', 'tools-button', 'send', 'tray']"
        ".map(id => document.getElementById(id).getBoundingClientRect().right)"
    )
    assert max(page.browser.run(ends)) <= 320, "everything has room on a small phone"
    page.browser.resize(1280, 800)
    page.ask("what is this")
    page.wait_for_end()
    spans = page.engine.submitted[-1].media
    assert [(span.kind, span.length) for span in spans] == list(zip(("image", "audio"), costs, strict=True))
    assert not page.browser.is_shown("#tray")
    page.ask("and now")
    page.browser.wait(lambda: page.browser.count(".answer") == 2)
    page.wait_for_end()
    assert page.engine.submitted[-1].media == spans, "a conversation is sent whole"
    page.browser.reload()
    page.browser.wait_for(".user .attachment", "not sent again")
    page.browser.wait_for(".user .attachment img")
    page.browser.wait_for("#attach")
    page.ask("still there")
    page.browser.wait(lambda: page.browser.count(".answer") == 3)
    page.wait_for_end()
    assert page.engine.submitted[-1].media == ()


def test_a_photo_of_20_megabytes(page: Page, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (2200, 3200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.png", compress_level=0)
    assert (tmp_path / "photo.png").stat().st_size > 20_000_000
    page.browser.run(
        "window.gaps = []; let last = performance.now();"
        "setInterval(() => { const now = performance.now(); gaps.push(now - last); last = now; }, 5)"
    )
    page.browser.timeout = 60
    page.browser.upload("#files", tmp_path / "photo.png")
    page.browser.wait_for(COST, " tokens")
    page.ask("what is this")
    page.wait_for_end()
    assert [span.kind for span in page.engine.submitted[-1].media] == ["image"]
    assert max(page.browser.run("return gaps")) < 3000, "the page goes on: 150 ms on two slow cores with other work"
    assert page.browser.run("return JSON.stringify(localStorage).length") < 40_000


def test_dropping_pasting_and_changing_ones_mind(page: Page) -> None:
    num_asked = len(page.engine.submitted)
    hand(page, "dragover", ("a.png", "image/png", PNG))
    assert page.browser.count("body.takes-files") == 1
    hand(page, "drop", ("a.png", "image/png", PNG), ("b.png", "image/png", PNG))
    assert page.browser.count("body.takes-files") == 0
    page.browser.wait_for("#tray .attachment:nth-child(2) .cost", " tokens")
    hand(page, "paste", ("c.png", "image/png", PNG))
    hand(page, "paste", ("text.png", "image/png", PNG), text="copied from an office program")
    page.browser.wait_for("#tray .attachment:nth-child(3) .cost", " tokens")
    page.browser.click("#tray .attachment:nth-child(1) button")
    assert page.browser.count("#tray .attachment") == 2
    page.browser.click("#send")  # pictures may speak for themselves
    page.wait_for_end()
    assert len(page.engine.submitted) == num_asked + 1
    assert len(page.engine.submitted[-1].media) == 2
    page.browser.run("document.querySelector('.user .edit').click()")
    assert page.browser.count("#tray .attachment") == 2
    page.ask("look")
    page.browser.wait_for(".user", "look")
    page.wait_for_end()
    assert page.browser.count(".user") == 1
    assert len(page.engine.submitted[-1].media) == 2


def test_files_that_are_not_taken(page: Page) -> None:
    for name, kind, body, words in (
        ("drawing.svg", "image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "drawing.svg is SVG"),
        ("paper.pdf", "application/pdf", b"%PDF-1.4", "neither a picture, sound nor a video"),
    ):
        hand(page, "drop", (name, kind, body))
        page.browser.wait_for("#notice", words)
        assert not page.browser.is_shown("#tray")
    page.browser.console()  # the browser's own line about 400


def test_more_than_the_server_takes(page: Page, browser: Browser, scripted: Scripted) -> None:
    asked = make_gemma4()
    model = {name: getattr(asked, name) for name in ("tokenizer", "template", "media")}
    with scripted([40, 1], model=model, max_request_bytes=1_000_000) as (server, engine):
        start(browser, server)
        browser.wait_for("#attach")
        hand(Page(browser, server, engine, page.tokenizer), "drop", ("a.png", "image/png", bytes(4_000_000)))
        browser.wait_for("#notice", "larger than 1000000 bytes")
        assert not browser.is_shown("#tray")
        browser.open("about:blank")
        browser.console()


def test_a_model_that_reads_text_only(browser: Browser, scripted: Scripted, page: Page) -> None:
    with scripted("one") as (server, engine):
        start(browser, server)
        browser.wait_for("#model", "tiny")
        assert not browser.is_shown("#attach")
        hand(Page(browser, server, engine, page.tokenizer), "drop", ("a.png", "image/png", PNG))
        browser.wait_for("#notice", "a.png is a picture. This model reads text.")
        browser.open("about:blank")
