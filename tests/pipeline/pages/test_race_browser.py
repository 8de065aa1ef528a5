"""Tests of the replay page in a browser: playing, stepping, choosing, by mouse, keyboard, touch, reduced motion."""

import base64
import re

import pytest

from helpers.pages_data import SCRIPT, build_race, data_of, pixels_of
from lantern_pipeline.pages.race import MAX_BYTES

DECODED = (
    "() => Promise.all(data.prompts[race.prompt].runs.map((run) => pictureOf(run).decode())).then(() => show(true))"
)
READING = "using getImageData"  # a hint about something that only tests do
START, END = "goTo(0)", "goTo(Infinity)"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("race") / "race.html"
    path.write_text(build_race(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def visit(browser, address):
    """Open the page in a new browser.

    At the end, assert that it requested nothing from outside and reported no error.
    """
    contexts, requests, errors = [], [], []

    def open_page(**options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.clock.install(time=0)
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if READING not in message.text else None)
        page.goto(address)
        page.clock.pause_at(3600)  # seconds; from here on, time stops until the clock is advanced
        page.evaluate(DECODED)
        page.evaluate(START)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == [] and {url for url in requests if not url.startswith("data:")} == {address}


def facts(page, name):
    """Return a value of all lanes, from left to right."""
    return page.locator(f".lane .{name}").all_inner_texts()


def drawn(page):
    """Return the grey levels of the patches of each lane, None for empty ones. Outlines must be off."""
    return page.evaluate(
        """() => race.lanes.map(({ canvas }) => {
            const context = canvas.getContext("2d"), cell = canvas.width / 4;
            return [...Array(16).keys()].map((token) => {
                const [x, y] = [token % 4, Math.floor(token / 4)].map((place) => Math.round((place + 0.5) * cell));
                const [red, green, blue] = context.getImageData(x, y, 1, 1).data;
                return red === green && green === blue ? red : null;
            });
        })"""
    )


def bars(page):
    return page.locator(".bar div").evaluate_all("bars => bars.map((bar) => parseFloat(bar.style.width))")


def test_the_page_opens_on_finished_images_which_stay_so_with_another_prompt_or_method(browser, address):
    page = browser.new_page()
    page.goto(address)
    page.evaluate(DECODED)
    page.uncheck("#outlines")
    assert drawn(page)[0] == [40] * 16 and facts(page, "forwards") == ["16", "5", "4", "4"]
    page.select_option("#prompt", label=SCRIPT)
    page.get_by_role("radio", name="Steps").check()
    page.evaluate(DECODED)
    assert drawn(page)[0] == [80] * 16 and page.inner_text("#play") == "Play"
    page.click("#play")
    assert page.inner_text("#play") == "Pause" and facts(page, "forwards") != ["16", "5", "4", "4"]
    page.close()


def test_methods_are_named_in_full_and_images_stand_in_one_line_however_long_the_texts_above_them(visit):
    page = visit(viewport={"width": 1110, "height": 900})
    names = page.locator(".lane .name span")
    assert names.all_inner_texts()[2] == "near (chain3, coupled, additive, l2) k 20, δ 0.1"
    assert names.evaluate_all("all => all.every((name) => name.scrollWidth <= name.clientWidth)")
    page.get_by_label("Method 2", exact=True).select_option(label="sampled (chain3, sampled)")
    assert names.all_inner_texts()[1] == "sampled (chain3, sampled)"
    assert len({text.bounding_box()["height"] for text in page.locator(".about").all()}) == 1
    page.evaluate("race.lanes[1].about.textContent = 'long '.repeat(40)")
    assert len({image.bounding_box()["y"] for image in page.locator(".lane canvas").all()}) == 1


def test_play_draws_the_images_at_the_recorded_pace_and_pause_holds_them(visit):
    page = visit()
    page.uncheck("#outlines")
    assert page.locator("#speed").input_value() == "0.25"  # 1.6 s of autoregressive decoding in about eight
    assert drawn(page) == [[None] * 16] * 4
    page.click("#play")
    assert page.inner_text("#play") == "Pause"
    page.clock.run_for(1250)  # three forwards of 100 ms
    page.click("#play")
    assert page.inner_text("#play") == "Play" and facts(page, "forwards") == ["3"] * 4
    assert facts(page, "tokens") == ["3 of 16", "8 of 16", "11 of 16", "10 of 16"]
    levels = drawn(page)
    assert levels[0] == [40] * 3 + [None] * 13 and levels[1] == [40] * 8 + [None] * 8
    assert levels[2] == [40] * 3 + [44] * 3 + [40] * 5 + [None] * 5
    page.clock.run_for(3000)
    assert facts(page, "forwards") == ["3"] * 4
    page.click("#play")
    page.clock.run_for(9000)
    assert page.inner_text("#play") == "Play" and facts(page, "forwards") == ["16", "5", "4", "4"]


def test_the_end_gives_time_speed_up_and_equality_and_steps_count_forwards_of_the_target(visit):
    page = visit()
    assert facts(page, "speed-up") == ["–"] * 4 and page.inner_text("#news") == ""
    page.evaluate("goTo(0.25)")
    assert bars(page) == [12.5, 25, 37.5, 25]  # tokens shown
    page.evaluate(END)
    assert facts(page, "tokens") == ["16", "all 16 equal", "3 of 16 differ", "16 of 16 differ"]
    assert facts(page, "rate") == ["1.00", "3.20", "4.00", "4.00"] and bars(page) == [100] * 4
    assert facts(page, "took") == ["1.600 s", "0.500 s", "0.400 s", "0.400 s"]
    assert facts(page, "speed-up") == ["1.00 ×", "3.20 ×", "4.00 ×", "4.00 ×"]
    news = page.locator("[role=status][aria-live=polite]").inner_text()
    speed = "coupled (chain3): 5 forward passes, 0.500 s, 3.20 times as fast as autoregressive decoding"
    assert f"{speed}; of its tokens all 16" in news
    near = "near (chain3, coupled, additive, l2) k 20, δ 0.1"
    assert page.get_by_role("img", name=f"{near}: 16 of 16 tokens shown").count() == 1

    page.evaluate(START)
    page.get_by_role("radio", name="Steps").check()
    assert page.locator("#speed").input_value() == "2" and page.inner_text("#clock") == "step 0 of 16"
    page.click("#next")
    page.click("#next")
    assert facts(page, "forwards") == ["2"] * 4
    assert facts(page, "tokens") == [f"{number} of 16" for number in (2, 4, 6, 4)]
    page.click("#back")
    assert page.inner_text("#clock") == "step 1 of 16"
    page.click("#play")
    page.clock.run_for(1600)
    assert facts(page, "forwards") == ["4"] * 4


def test_prompts_and_methods_are_chosen_and_a_prompt_s_markup_stays_text(visit):
    page = visit()
    page.select_option("#prompt", label=SCRIPT)
    assert facts(page, "forwards") == ["0"] * 4 and page.title() == "Token by token"
    assert page.locator("main script, main img").count() == 0
    page.uncheck("#outlines")
    blind = "blind (chain3, sampled, additive, l2) k 20, δ 0.1"
    assert f"Substitutions are unknown for {blind}:" in page.inner_text("#unknown")
    page.get_by_label("Remove method 4").click()
    assert page.is_hidden("#unknown")
    page.get_by_label("Remove method 3").click()
    assert page.locator(".lane").count() == 2 and page.get_by_label("Remove method 1").is_hidden()
    page.get_by_label("Method 2", exact=True).select_option(label="sampled (chain3, sampled)")
    assert page.locator(".about").all_inner_texts()[1].startswith("Exact in distribution")
    taken = page.get_by_label("Method 1", exact=True).locator("option[disabled]")
    assert taken.all_inner_texts() == ["sampled (chain3, sampled)"]
    page.evaluate(END)
    page.evaluate(DECODED)
    assert drawn(page) == [[80] * 16, [88] * 16]
    page.click("#add")
    assert page.get_by_label("Method 3", exact=True).evaluate("select => select === document.activeElement")


def test_outlines_differ_by_shape_and_can_be_switched_off(visit):
    page = visit(device_scale_factor=1)
    page.evaluate(END)
    lines = """(colour) => {
        const canvas = race.lanes[2].canvas, context = canvas.getContext("2d"), cells = Array(16).fill(0);
        const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 0; i < pixels.length; i += 4) {
            if (colour.some((value, k) => Math.abs(pixels[i + k] - value) > 40)) continue;
            const [x, y] = [(i / 4) % canvas.width, Math.floor(i / 4 / canvas.width)];
            cells[4 * Math.floor((4 * y) / canvas.height) + Math.floor((4 * x) / canvas.width)]++;
        }
        return cells;
    }"""
    own, draft, other = (page.evaluate(lines, colour) for colour in ([255, 255, 255], [255, 216, 77], [255, 90, 31]))
    for found, mark in ((own, "t"), (draft, "d"), (other, "s")):
        assert [count > 0 for count in found] == [mark == other_mark for other_mark in "tddsdtddddtddddt"]
    assert max(draft) < max(own) * 1.3 < max(other)  # dashed, thin, thick with a corner
    page.uncheck("#outlines")
    assert set(page.evaluate(lines, [255, 216, 77])) == {0}


def test_everything_works_by_keyboard_and_has_a_name(visit):
    page = visit()
    page.keyboard.press("Space")
    assert page.inner_text("#play") == "Pause"
    page.keyboard.press("Space")
    seen = []
    for _ in range(17):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("[document.activeElement.id, document.activeElement.name].find(Boolean) || 'lane'"))
        if seen[-1] == "play":
            page.keyboard.press("Enter")
            assert page.inner_text("#play") == "Pause"
            page.clock.run_for(1000)
            page.keyboard.press("Space")
            assert page.inner_text("#play") == "Play"
        if seen[-1] == "place":
            page.keyboard.press("End")
            assert facts(page, "forwards") == ["16", "5", "4", "4"]
        if seen[-1] == "mode":
            page.keyboard.press("ArrowRight")
            assert page.inner_text("#clock").startswith("step")
    assert seen[0] == "prompt" and seen[1:9] == ["lane"] * 8
    assert seen[9:] == ["play", "restart", "back", "next", "place", "mode", "speed", "outlines"]
    names = page.locator("main :is(button, select, input):visible").evaluate_all(
        "all => all.map((c) => c.ariaLabel || c.labels?.[0]?.innerText || c.textContent)"
    )
    assert len(names) >= 15 and all(re.search(r"\w", name) for name in names)


def test_reduced_motion_shows_the_end_or_single_steps(visit):
    page = visit(reduced_motion="reduce")
    page.click("#next")
    assert facts(page, "forwards") == ["1"] * 4
    assert page.inner_text("#play") == "Show the end"
    page.click("#play")
    assert facts(page, "forwards") == ["16", "5", "4", "4"] and "coupled (chain3): 5 forward passes" in page.inner_text(
        "#news"
    )


def test_a_phone_shows_two_lanes_side_by_side_without_scrolling_sideways(visit):
    page = visit(viewport={"width": 360, "height": 844}, has_touch=True, is_mobile=True)
    left, right = (lane.bounding_box() for lane in page.locator(".lane canvas").all())
    assert left["y"] == right["y"] and left["width"] >= 140 and left["width"] == pytest.approx(right["width"], abs=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("#play").bounding_box()["y"] < 844  # stays in reach
    page.tap("#play")
    page.clock.run_for(500)
    assert page.inner_text("#play") == "Pause" and facts(page, "forwards")[0] == "1"
    page.tap("#add")
    page.tap("#add")
    assert page.locator(".lane").count() == 4 and page.evaluate("document.documentElement.scrollWidth") <= 360
    boxes = [button.bounding_box() for button in page.locator("button:visible, .lane select").all()]
    assert min(min(box["width"], box["height"]) for box in boxes) >= 24  # WCAG 2.2, target size


@pytest.mark.slow
def test_a_page_of_the_largest_size_plays_within_snakemakes_report(browser):
    html = build_race()
    html += " " * (MAX_BYTES - len(html))
    uri = f"data:text/html;charset=utf8;filename=race.html;base64,{base64.b64encode(html.encode()).decode()}"
    page = browser.new_page()
    page.set_content(f'<iframe src="{uri}" width="1000" height="700"></iframe>')
    frame = page.frame_locator("iframe")
    frame.locator("#play").click()
    assert frame.locator("#play").inner_text() == "Pause"
    page.close()


def test_a_wide_image_has_wide_lanes_and_its_patches_in_their_places(browser, tmp_path):
    path = tmp_path / "wide.html"
    path.write_text(build_race(shape=(2, 8)), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.evaluate(DECODED)
    page.evaluate(END)
    page.uncheck("#outlines")
    width, height = page.evaluate("(() => { const c = race.lanes[0].canvas; return [c.width, c.height]; })()")
    assert width == pytest.approx(4 * height, abs=4)
    levels = page.evaluate(
        "[0, 7].map((column) => race.lanes[0].canvas.getContext('2d').getImageData("
        "(column + 0.5) * race.lanes[0].canvas.width / 8, race.lanes[0].canvas.height * 0.75, 1, 1).data[0])"
    )
    image = pixels_of(data_of(path.read_text())["images"][0])
    assert levels == [image[2, 0, 0], image[2, 14, 0]]
    page.close()
