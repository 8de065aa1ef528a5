"""Tests of the live page in a browser: its images equal Python's, and its controls work."""

import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from live.build import FILES, METHODS, PROMPT_ID, write_page

import lantern
from lantern.noise import gumbel_field
from lantern_pipeline.measure.exactness.losslessness import NEAR_TIE_MARGIN

CAPTIONS = [
    "a small white ring above a large blue triangle on grass",
    "a large red circle on sand",
    "a small green cross left of a small purple square on night",
    "a large yellow square below a small red ring on water",
]
# Returns noise of two seeds at two positions.
NOISE = """async () => {
    const { makeStreams } = await import("/noise.js");
    return [0, 99].flatMap((seed) =>
        [0, 63].map((position) => [...makeStreams(data.keys[seed]).draft.gumbel(position, 1024)]));
}"""
# Generates an image by each method for each seed and caption, and decodes it.
GENERATE = """async (pairs) => {
    const [{ loadModels }, { decode }, { makeStreams }] =
        await Promise.all(["/load.js", "/decoding.js", "/noise.js"].map((path) => import(path)));
    const models = await loadModels(data);
    const streams = Object.fromEntries(pairs.map(([seed]) => [seed, makeStreams(data.keys[seed])]));
    return pairs.flatMap(([seed, caption]) => data.methods.map((method) => {
        const settings = { ...data.sampling, temperature: 1, k: method.k, delta: method.delta };
        const passes = [...decode(method, models, models.encoder.encode(caption), streams[seed], settings)];
        const tokens = passes.flatMap((pass) => pass.emitted);
        const margins = passes.flatMap((pass) => pass.emitted.map(() => pass.margin));
        const pixels = [...models.decoder.decode(tokens).data];
        return { seed, method: method.id, tokens, margins, forwards: passes.length, pixels };
    }));
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("live") / "demo"
    write_page(path)
    return path


@pytest.fixture(scope="module")
def address(folder):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def visit(browser, address):
    """Open the page in a new browser.

    At the end, assert that it requested nothing from elsewhere and reported no error.
    """
    contexts, requests, errors = [], [], []

    def open_page(has_clock=False, **options):
        context = browser.new_context(**options)
        context.set_default_timeout(120_000)  # milliseconds; parallel tests slow the page down
        contexts.append(context)
        page = context.new_page()
        if has_clock:
            page.clock.install(time=0)
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.locator("#generate:enabled").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == [] and {url for url in requests if not url.startswith(address)} <= {"data:,"}


def facts(page, name):
    """Return a value of all methods, in the order of the page."""
    return page.locator(f".lane .{name}").all_inner_texts()


def test_the_kernel_is_compiled_from_its_text(tmp_path):
    compiler = shutil.which("wat2wasm")
    if compiler is None:
        pytest.skip("needs wat2wasm of the package wabt on the PATH")
    subprocess.run([compiler, FILES / "kernel.wat", "-o", tmp_path / "kernel.wasm"], check=True)
    assert (tmp_path / "kernel.wasm").read_bytes() == (FILES / "kernel.wasm").read_bytes()


@pytest.mark.slow
def test_noise_and_tokens_are_those_of_python_with_all_methods(visit):
    page = visit(reduced_motion="reduce")
    rows = page.evaluate(NOISE)
    expected = [gumbel_field(seed, PROMPT_ID, "draft", 1, 1024, first)[0] for seed in (0, 99) for first in (0, 63)]
    np.testing.assert_array_max_ulp(np.float32(rows), np.stack(expected), 1)
    model = lantern.load("embedded")
    near_ties = 0
    for found in page.evaluate(GENERATE, list(enumerate(CAPTIONS))):
        preset, parts = METHODS[found["method"]]
        images = model.generate(CAPTIONS[found["seed"]], preset, seed=found["seed"], **parts)
        pairs = zip(found["tokens"], images.codes[0].tolist(), strict=True)
        first = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        if first is not None:
            assert found["margins"][first] < NEAR_TIE_MARGIN, (found["method"], CAPTIONS[found["seed"]])
            near_ties += 1
            continue
        assert found["forwards"] == images.steps[0]
        pixels = np.reshape(found["pixels"], (48, 48, 4))[..., :3]
        assert np.abs(pixels - images.pixels[0].astype(int)).max() <= 1  # float32 rounding may cross a rounding bound
    assert near_ties <= 1  # of twelve images; in one of 64 decisions, a margin below 1e-4 is rare


def test_a_caption_is_drawn_to_the_end_by_all_methods_and_again_with_other_settings(visit):
    page = visit(reduced_motion="reduce")
    page.locator("#news", has_text="forward passes").wait_for()
    assert facts(page, "tokens") == ["64 of 64"] * 3 and facts(page, "equal")[:2] == ["–", "64 of 64"]
    forwards = [int(text) for text in facts(page, "forwards")]
    assert forwards[0] == 64 > max(forwards[1:])
    assert facts(page, "rate") == [f"{64 / number:.2f}" for number in forwards]
    assert all(float(text) > 0 for text in facts(page, "seconds"))
    assert page.locator("#news").inner_text().count("forward passes") == 3

    def images_after(action, *arguments):
        page.evaluate("byId('news').textContent = ''")  # the end of the next race fills it
        action(*arguments)
        page.locator("#news", has_text="forward passes").wait_for()
        return page.locator("canvas[role=img]").evaluate_all("all => all.map((canvas) => canvas.toDataURL())")

    first = images_after(page.get_by_role("button", name="Generate").click)
    second = images_after(page.get_by_role("button", name="Another seed").click)
    assert page.locator("#seed-number").inner_text() == "1"
    assert all(one != other for one, other in zip(first, second, strict=True))
    relaxed = images_after(page.get_by_label("Relaxation").press, "End")
    assert relaxed[:2] == second[:2] and relaxed[2] != second[2]
    images_after(page.get_by_label("Relation of the objects").select_option, "alone")
    assert page.get_by_label("Size of the second object").is_hidden()
    assert "a small white ring on grass" in page.locator("canvas[role=img]").first.get_attribute("aria-label")


@pytest.mark.slow
def test_the_clock_of_forward_passes_gives_all_methods_the_same_pace_and_pauses(visit):
    page = visit(has_clock=True)
    page.get_by_role("radio", name="Forward passes").check()
    assert page.locator("#pace").input_value() == "8"
    page.clock.pause_at(3600)
    page.get_by_role("button", name="Generate").click()
    page.clock.run_for(1100)
    assert len(set(facts(page, "forwards"))) == 1 and 7 <= int(facts(page, "forwards")[0]) <= 8
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press(" ")
    held = facts(page, "tokens")
    page.clock.run_for(1000)
    assert facts(page, "tokens") == held and page.inner_text("#pause") == "Resume"
    page.locator("#pace").select_option("32")
    page.keyboard.press(" ")
    page.clock.run_for(2000)  # 56 passes are left
    assert facts(page, "tokens") == ["64 of 64"] * 3 and page.locator("#pause").is_disabled()


@pytest.mark.slow
def test_a_phone_scrolls_only_down_and_every_control_has_a_name(visit):
    page = visit(reduced_motion="reduce", viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    names = page.locator("button, select, input").evaluate_all(
        "all => all.map((part) => part.ariaLabel || part.labels?.[0]?.innerText || part.innerText)"
    )
    assert all(names)


@pytest.mark.slow
def test_opened_as_a_file_the_page_says_which_command_serves_it(browser, folder):
    page = browser.new_page()
    page.goto((folder / "index.html").as_uri())
    assert "python -m http.server --directory demo" in page.inner_text("#status")
    page.close()
