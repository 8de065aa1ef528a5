"""Tests of the study in a browser: scripted participants see only the page, and their answers are analysed."""

import json

import numpy as np
import pytest

from helpers.pages_data import NUM_CHECKS, NUM_PAIRS, TRIALS, build_study
from lantern_pipeline.pages.study_analysis import CHECK, analyse_answers


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Return (address of the page, key)."""
    html, key = build_study()
    path = tmp_path_factory.mktemp("study") / "study.html"
    path.write_text(html, encoding="utf-8")
    return path.as_uri(), key


class Visit:
    """Open page in a new browser.

    At the end, it asserts that the page requested nothing from outside and reported no error.
    """

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(accept_downloads=True, **options)
        self.page = self.context.new_page()
        self.address, self.requests, self.errors = address, [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.goto(address)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.context.close()
        if kind is None:
            assert self.errors == []
            assert {url for url in self.requests if not url.startswith(("data:", "blob:"))} == {self.address}

    @property
    def place(self):
        """Return the number of the pair that is shown, from 1, or None on the first and the last page."""
        return int(self.page.inner_text("#place").split()[0]) if self.page.is_visible("#trial") else None

    def look(self):
        """Return what a participant sees: caption, and the grey levels of the left and the right image."""
        return self.page.evaluate(
            """async () => {
                const level = async (id) => {
                    const image = document.getElementById(id);
                    await image.decode();
                    const canvas = document.createElement("canvas");
                    canvas.getContext("2d").drawImage(image, 0, 0);
                    return canvas.getContext("2d").getImageData(0, 0, 1, 1).data[0];
                };
                const caption = document.getElementById("caption").innerText;
                return [caption, await level("leftImage"), await level("rightImage")];
            }"""
        )

    def answer(self, wants_first):
        """Press the key of the image that a participant wants; `wants_first` maps the number of a trial to a bool."""
        caption, left, right = self.look()
        number = left // 5
        assert {left, right} == {5 * number + 1, 5 * number + 2} and caption == TRIALS[number].caption
        self.page.keyboard.press("ArrowLeft" if (left < right) == bool(wants_first[number]) else "ArrowRight")
        return number, left < right

    def answer_all(self, wants_first):
        self.page.keyboard.press("Enter")
        return [self.answer(wants_first) for _ in TRIALS]

    def save(self, folder):
        with self.page.expect_download() as download:
            self.page.click("#download")
        path = folder / download.value.suggested_filename
        download.value.save_as(path)
        return path


def test_readers_answer_by_keyboard_and_their_files_give_back_what_they_prefer(browser, study, tmp_path):
    """Three participants prefer the autoregressive image of one method in 85 % of pairs, and are neutral on another."""
    address, key = study
    chances = np.repeat([0.5, 0.85, 1.0], [NUM_PAIRS, NUM_PAIRS, NUM_CHECKS])
    tastes = np.random.default_rng(0).random((3, len(TRIALS))) < chances  # readers x trials, so that no run differs
    shown, paths = [], []
    with Visit(browser, address) as visit:
        shown.append(visit.answer_all(tastes[0]))
        assert visit.page.is_disabled("#again")
        paths.append(visit.save(tmp_path))
        visit.page.click("#again")  # another reader in the same browser
        shown.append(visit.answer_all(tastes[1]))
        paths.append(visit.save(tmp_path))
        assert visit.page.title() != "stolen" and visit.page.locator("main script").count() == 0
    with Visit(browser, address) as visit:
        shown.append(visit.answer_all(tastes[2]))
        paths.append(visit.save(tmp_path))
    table, about = analyse_answers(paths, key, min_checks=0.8)
    near, far = (tastes[:, first : first + NUM_PAIRS].mean() for first in (0, NUM_PAIRS))
    assert table["share_autoregressive"].tolist() == pytest.approx([near, far])
    assert table["preferred"].tolist() == ["none", "autoregressive"]
    assert (about["num_readers"], about["num_inattentive"]) == (3, 0)
    assert len(set(paths)) == 3 and all(path.name.startswith(f"lantern-study-{key['study']}-") for path in paths)
    # Drawn in the browser: 60 fair coins fall outside 10 to 50 once in ten million runs.
    assert len({tuple(number for number, _ in one) for one in shown}) == 3
    assert 10 <= sum(is_left for one in shown for _, is_left in one) <= 50
    file = json.loads(paths[0].read_text())  # only which image was shown on which side
    assert set(file) == {"format", "version", "study", "reader", "download", "answers"}
    for (number, is_left), answer in zip(shown[0], file["answers"], strict=True):
        assert set(answer) == {"trial", "left", "choice", "milliseconds"}
        hidden = key["trials"][answer["trial"]]
        assert hidden["prompt_id"] == TRIALS[number].prompt_id and answer["milliseconds"] >= 0
        assert (answer["left"] == hidden["baseline"]) == is_left
        assert answer["choice"] == ("left" if is_left == tastes[0][number] else "right")


def test_a_reload_loses_nothing_and_a_second_save_replaces_the_first(browser, study, tmp_path):
    address, key = study
    wants = [number % 2 == 0 or trial.kind == CHECK for number, trial in enumerate(TRIALS)]
    with Visit(browser, address) as visit:
        visit.page.keyboard.press("Enter")
        first = [visit.answer(wants) for _ in range(11)]
        before = visit.look()
        visit.page.reload()
        assert visit.place == 12 and visit.look() == before
        rest = [visit.answer(wants) for _ in range(len(TRIALS) - 11)]
        visit.page.reload()
        saved = visit.save(tmp_path).rename(tmp_path / "first.json")
        visit.page.keyboard.press("Backspace")
        assert visit.place == len(TRIALS)
        number, _ = visit.answer([not wanted for wanted in wants])  # a changed mind
        second = visit.save(tmp_path)
    assert sorted(number for number, _ in first + rest) == list(range(len(TRIALS)))
    assert analyse_answers([saved], key, min_checks=1.0)[0]["share_autoregressive"].tolist() == [0.5, 0.5]
    _, about = analyse_answers([saved, second], key, min_checks=0.0)
    assert (about["num_readers"], about["num_repeated"]) == (1, 1)
    old, new = (json.loads(path.read_text())["answers"] for path in (saved, second))
    changed = [one["trial"] for one, other in zip(old, new, strict=True) if one["choice"] != other["choice"]]
    assert [key["trials"][trial]["prompt_id"] for trial in changed] == [TRIALS[number].prompt_id]


def test_keys_and_buttons_go_forward_and_back(browser, study):
    with Visit(browser, study[0]) as visit:
        press, page = visit.page.keyboard.press, visit.page
        press("ArrowLeft"), press("Backspace")
        assert visit.place is None  # nothing happens before the start
        press("Enter")
        assert visit.place == 1
        for place, key in enumerate(("f", "j", "F", "J", "ArrowLeft", "ArrowRight"), start=2):
            press(key)
            assert visit.place == place
        press("x"), press("Control+f")
        assert visit.place == 7
        press("Backspace")
        assert visit.place == 6
        assert [page.get_attribute(f"#{side}", "aria-pressed") for side in ("left", "right")] == ["false", "true"]
        page.click("#back")
        assert visit.place == 5 and page.get_attribute("#left", "aria-pressed") == "true"
        page.click("#right"), press("Backspace")
        assert visit.place == 5 and page.get_attribute("#right", "aria-pressed") == "true"
        press("Tab")
        assert page.evaluate("document.activeElement.id") == "left"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        press("Enter")
        assert visit.place == 6
        page.keyboard.down("f"), page.keyboard.down("f"), page.keyboard.down("f")  # a key held down repeats
        assert visit.place == 7


def test_the_policy_would_stop_requests_and_foreign_scripts(browser, study):
    with Visit(browser, study[0]) as visit:
        stopped = visit.page.evaluate(
            """async () => {
                const stopped = [];
                document.addEventListener("securitypolicyviolation", (event) => stopped.push(event.effectiveDirective));
                await fetch("http://127.0.0.1:9/").catch(() => null);
                const script = document.createElement("script");
                script.textContent = "document.title = 'stolen'";
                document.body.append(script);
                const image = document.createElement("img");
                image.src = "http://127.0.0.1:9/";
                await new Promise((resolve) => { image.onerror = resolve; });
                return stopped.sort();
            }"""
        )
        assert stopped == ["connect-src", "img-src", "script-src-elem"] and visit.page.title() != "stolen"
        visit.errors.clear()  # blocked requests are reported there
        visit.requests[:] = [visit.address]


def test_the_page_works_without_storage_and_with_spoilt_storage(browser, study, tmp_path):
    address, key = study
    with Visit(browser, address) as visit:
        for stored in ("{", "null", '{"order": []}', '{"order": 3, "answers": [], "place": 1}'):
            item = [f"lantern-study-{key['study']}", stored]
            visit.page.evaluate("([name, value]) => localStorage.setItem(name, value)", item)
            visit.page.reload()
            visit.page.keyboard.press("Enter")
            assert visit.place == 1
        visit.page.add_init_script(
            "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('', 'SecurityError'); } })"
        )
        visit.page.reload()
        assert "Do not reload" in visit.page.inner_text("#unsaved")
        visit.answer_all([True] * len(TRIALS))
        assert analyse_answers([visit.save(tmp_path)], key, min_checks=0.8)[1]["num_readers"] == 1


def test_a_double_click_answers_no_pair_that_was_not_seen(browser, study):
    with Visit(browser, study[0]) as visit:
        box = visit.page.locator("#start").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        # The left image comes to lie under the pointer, as it may in another window.
        place = {"position": "fixed", "left": f"{x - 40}px", "top": f"{y - 40}px", "width": "80px", "height": "80px"}
        visit.page.evaluate("(place) => Object.assign(document.getElementById('left').style, place)", place)
        visit.page.mouse.dblclick(x, y)
        assert visit.place == 1
        visit.page.wait_for_timeout(700)  # longer than any double click
        visit.page.mouse.click(x, y)
        assert visit.place == 2


def test_a_phone_shows_both_images_side_by_side_without_scrolling_sideways(browser, study):
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with Visit(browser, study[0], **phone) as visit:
        visit.page.tap("#start")
        left, right = (visit.page.locator(f"#{side}Image").bounding_box() for side in ("left", "right"))
        assert left["y"] == right["y"] and left["width"] >= 140 and abs(left["width"] - right["width"]) < 0.1
        assert left["x"] + left["width"] < right["x"] and right["x"] + right["width"] <= 360
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
        visit.page.tap("#right")
        assert visit.place == 2
        assert visit.page.get_attribute("#leftImage", "alt") == "Left image"
