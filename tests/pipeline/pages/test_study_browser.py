"""The study in a browser: scripted readers who see only what the page shows, and the analysis of what they saved."""

import json

import numpy as np
import pytest

from lantern_pipeline.pages.study import CHECK, PAIR, Trial, build_page
from lantern_pipeline.pages.study_analysis import analyse_answers

NUM_PAIRS, NUM_CHECKS = 8, 4
METHODS = [{"method_id": name, "label": name, "num_pairs": NUM_PAIRS, "num_ties": 0} for name in ("near", "far")]
SCRIPT = "<script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\"> & ring"


def make_trials():
    """Trial i shows the grey levels 5 i + 1 (autoregressive or fitting) and 5 i + 2."""
    kinds = [(PAIR, method["method_id"]) for method in METHODS for _ in range(NUM_PAIRS)] + [(CHECK, "")] * NUM_CHECKS
    return [
        Trial(
            kind,
            SCRIPT if i == 0 else f"caption {i}",
            f"p{i}",
            method_id,
            np.stack([np.full((6, 6, 3), 5 * i + 1 + side, np.uint8) for side in (0, 1)]),
        )
        for i, (kind, method_id) in enumerate(kinds)
    ]


TRIALS = make_trials()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """(address of the page, key)."""
    html, key = build_page(TRIALS, METHODS, question="Which is nicer?", seed=0)
    path = tmp_path_factory.mktemp("study") / "study.html"
    path.write_text(html, encoding="utf-8")
    return path.as_uri(), key


class Visit:
    """A browser of its own with the page open; keeps a list of what the page asked for and of what went wrong."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(accept_downloads=True, **options)
        self.page = self.context.new_page()
        self.requests, self.errors = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.goto(address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    @property
    def place(self):
        """Number of the pair shown, from 1; None on the first and the last page."""
        return int(self.page.inner_text("#place").split()[0]) if self.page.is_visible("#trial") else None

    def look(self):
        """What a reader sees: caption, and the grey levels on the left and on the right."""
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

    def answer(self, wants_first, keys=("ArrowLeft", "ArrowRight")):
        """Presses the key of the image that a reader wants; `wants_first` maps the trial's number to a bool."""
        _, left, right = self.look()
        number = left // 5
        assert {left, right} == {5 * number + 1, 5 * number + 2}
        self.page.keyboard.press(keys[0] if (left < right) == bool(wants_first[number]) else keys[1])
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


def everywhere(value):
    return [value] * len(TRIALS)


def test_readers_answer_by_keyboard_and_their_files_give_back_what_they_prefer(browser, study, tmp_path):
    """Six readers like the autoregressive image of method far in 85 % of the pairs and have no taste for near."""
    address, key = study
    chances = [{"near": 0.5, "far": 0.85}.get(trial.method_id, 1.0) for trial in TRIALS]
    tastes = np.random.default_rng(0).random((6, len(TRIALS))) < chances  # readers x trials, so that no run differs
    paths, orders, sides = [], [], []
    for taste in tastes:
        with Visit(browser, address) as visit:
            shown = visit.answer_all(taste)
            orders.append([number for number, _ in shown])
            sides += [is_left for _, is_left in shown]
            paths.append(visit.save(tmp_path))
            assert visit.errors == []
    table, about = analyse_answers(paths, key, min_checks=0.8)
    near, far = (row for _, row in table.iterrows())
    assert near["share_autoregressive"] == pytest.approx(tastes[:, :NUM_PAIRS].mean())
    assert far["share_autoregressive"] == pytest.approx(tastes[:, NUM_PAIRS : 2 * NUM_PAIRS].mean())
    assert (near["preferred"], far["preferred"]) == ("none", "autoregressive")
    assert (about["num_readers"], about["num_inattentive"]) == (6, 0)
    assert len(set(paths)) == 6 and all(path.name.startswith(f"lantern-study-{key['study']}-") for path in paths)
    # Drawn in the browser: 120 fair coins fall outside 30 to 90 once in twenty million runs.
    assert len({tuple(order) for order in orders}) == 6 and 30 <= sum(sides) <= 90


def test_the_file_says_what_was_shown_where_and_holds_nothing_else(browser, study, tmp_path):
    address, key = study
    with Visit(browser, address) as visit:
        shown = visit.answer_all(everywhere(True))
        found = json.loads(visit.save(tmp_path).read_text())
    assert set(found) == {"format", "version", "study", "reader", "download", "answers"}
    for (number, is_left), answer in zip(shown, found["answers"], strict=True):
        assert set(answer) == {"trial", "left", "choice", "milliseconds"}
        hidden = key["trials"][answer["trial"]]
        assert hidden["prompt_id"] == TRIALS[number].prompt_id
        assert (answer["left"] == hidden["baseline"]) == is_left
        assert answer["choice"] == ("left" if is_left else "right") and answer["milliseconds"] >= 0


def test_a_reload_loses_nothing(browser, study, tmp_path):
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
        assert visit.page.is_visible("#download")
        table, _ = analyse_answers([visit.save(tmp_path)], key, min_checks=1.0)
    assert sorted(number for number, _ in first + rest) == list(range(len(TRIALS)))
    assert table["share_autoregressive"].tolist() == [0.5, 0.5]


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


def test_a_changed_mind_counts_and_a_second_save_replaces_the_first(browser, study, tmp_path):
    address, key = study
    with Visit(browser, address) as visit:
        visit.answer_all(everywhere(True))
        first = visit.save(tmp_path).rename(tmp_path / "first.json")
        visit.page.keyboard.press("Backspace")
        assert visit.place == len(TRIALS)
        number, _ = visit.answer(everywhere(False))
        second = visit.save(tmp_path)
    _, about = analyse_answers([first, second], key, min_checks=0.0)
    assert (about["num_readers"], about["num_repeated"]) == (1, 1)
    answers = {key["trials"][a["trial"]]["prompt_id"]: a for a in json.loads(second.read_text())["answers"]}
    old = {key["trials"][a["trial"]]["prompt_id"]: a for a in json.loads(first.read_text())["answers"]}
    changed = [prompt_id for prompt_id in answers if answers[prompt_id]["choice"] != old[prompt_id]["choice"]]
    assert changed == [TRIALS[number].prompt_id]


def test_another_reader_starts_afresh_with_an_id_and_an_order_of_their_own(browser, study, tmp_path):
    address, key = study
    with Visit(browser, address) as visit:
        orders = [[number for number, _ in visit.answer_all(everywhere(True))]]
        assert visit.page.is_disabled("#again")
        paths = [visit.save(tmp_path)]
        visit.page.click("#again")
        orders.append([number for number, _ in visit.answer_all(everywhere(True))])
        paths.append(visit.save(tmp_path))
    assert orders[0] != orders[1]
    assert analyse_answers(paths, key, min_checks=0.8)[1]["num_readers"] == 2


def test_a_caption_with_a_script_is_shown_and_not_run(browser, study):
    with Visit(browser, study[0]) as visit:
        visit.page.keyboard.press("Enter")
        captions = []
        for _ in TRIALS:
            captions.append(visit.look()[0])
            visit.answer(everywhere(True))
        assert SCRIPT in captions
        assert visit.page.title() != "stolen" and visit.page.locator("main script").count() == 0


def test_no_request_leaves_the_page_and_the_policy_would_stop_one(browser, study, tmp_path):
    address, _ = study
    with Visit(browser, address) as visit:
        visit.answer_all(everywhere(True))
        visit.save(tmp_path)
        outside = [url for url in visit.requests if not url.startswith(("data:", "blob:"))]
        assert outside == [address] and visit.errors == []
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


def test_the_page_works_without_storage_and_says_so(browser, study, tmp_path):
    address, key = study
    with Visit(browser, "about:blank") as visit:
        visit.page.add_init_script(
            "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('', 'SecurityError'); } })"
        )
        visit.page.goto(address)
        assert "do not reload" in visit.page.inner_text("#unsaved")
        visit.answer_all(everywhere(True))
        assert analyse_answers([visit.save(tmp_path)], key, min_checks=0.8)[1]["num_readers"] == 1
        assert visit.errors == []


@pytest.mark.parametrize("stored", ["{", "null", '{"order": []}', '{"order": 3, "answers": [], "place": 1}'])
def test_spoilt_storage_starts_afresh(browser, study, stored):
    address, key = study
    with Visit(browser, address) as visit:
        visit.page.evaluate(
            "([name, value]) => localStorage.setItem(name, value)", [f"lantern-study-{key['study']}", stored]
        )
        visit.page.reload()
        visit.page.keyboard.press("Enter")
        assert visit.place == 1 and visit.errors == []


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_a_double_click_answers_no_pair_that_was_not_seen(browser, study, size):
    address, _ = study
    with Visit(browser, address, viewport={"width": size[0], "height": size[1]}) as visit:
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
