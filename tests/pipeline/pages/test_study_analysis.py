"""Tests of the analysis of a study: planted preferences are found, others are not, and bad files are named."""

import json

import numpy as np
import pytest

from lantern_pipeline.measure.intervals import share_interval
from lantern_pipeline.pages.study_analysis import CHECK, PAIR, analyse_answers, preference_interval, read_key
from lantern_pipeline.plan.paths import answer_files


def make_key(num_checks=6, methods=("far",)):
    trials = [(PAIR, method, f"p{i}") for method in methods for i in range(16)]
    trials += [(CHECK, "", f"c{i}") for i in range(num_checks)]
    about = {"label": "a label", "num_pairs": 18, "num_ties": 2}
    return {
        "format": "lantern-study-key",
        "version": 1,
        "study": "0123456789abcdef",
        "methods": [{"method_id": method, **about} for method in methods],
        "trials": {
            f"t{number:03d}": {"kind": kind, "method_id": method, "prompt_id": prompt, "baseline": number % 2}
            for number, (kind, method, prompt) in enumerate(trials)
        },
    }


def make_file(key, reader, wants_baseline, seed=0, **changes):
    """Return the answers of a participant who chooses the autoregressive image if `wants_baseline(trial)`."""
    generator, answers = np.random.default_rng(seed), []
    for name in generator.permutation(list(key["trials"])).tolist():
        trial, left = key["trials"][name], int(generator.integers(2))
        slot = trial["baseline"] if wants_baseline(trial) else 1 - trial["baseline"]
        choice = "left" if slot == left else "right"
        answers.append({"trial": name, "left": left, "choice": choice, "milliseconds": 2500})
    head = {"format": "lantern-study-answers", "version": 1, "study": key["study"], "reader": reader, "download": 1}
    return {**head, "answers": answers, **changes}


def always(trial):
    return True


def write(folder, name, value):
    path = folder / f"{name}.json"
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return path


def write_readers(folder, key, number, chance):
    """Write answers of participants who pass the checks.

    In other pairs they choose the autoregressive image with a probability per method.
    """
    generator = np.random.default_rng(0)

    def wants(trial):
        return trial["kind"] == CHECK or generator.random() < chance[trial["method_id"]]

    return [write(folder, f"reader{i}", make_file(key, f"r{i}", wants, i)) for i in range(number)]


def analyse(paths, key, min_checks=0.8):
    return analyse_answers(paths, key, min_checks=min_checks)


def test_a_planted_preference_is_found_and_none_where_there_is_none(tmp_path):
    key = make_key(methods=("near", "far"))
    paths = write_readers(tmp_path, key, 12, {"near": 0.5, "far": 0.7})
    table, about = analyse(paths, key)
    near, far = (row for _, row in table.iterrows())
    assert (near["preferred"], far["preferred"]) == ("none", "autoregressive")
    # 192 judgements: the share's standard error is 0.033.
    assert abs(far["share_autoregressive"] - 0.7) < 0.1
    assert far["share_autoregressive_low"] < 0.7 < far["share_autoregressive_high"]
    assert far["share_relaxed"] == pytest.approx(1 - far["share_autoregressive"])
    assert far["share_relaxed_low"] == pytest.approx(1 - far["share_autoregressive_high"])
    assert (far["num_pairs"], far["num_ties"], far["num_shown"]) == (18, 2, 16)
    assert (far["num_readers"], far["num_judgements"]) == (12, 192)
    assert (about["num_readers"], about["num_files"]) == (12, 12)
    assert analyse(paths, key)[0].equals(table)
    # the same participants, with the autoregressive image exchanged in every pair of "far"
    for trial in key["trials"].values():
        trial["baseline"] = trial["baseline"] ^ (trial["method_id"] == "far")
    assert analyse(paths, key)[0]["preferred"].tolist() == ["none", "relaxed"]


# --- intervals ---------------------------------------------------------------------------------------


def simulate(generator, num_readers, num_prompts, shift, reader_scatter, prompt_scatter):
    """Simulate choices, (readers, prompts) bool, with random effects of participants and prompts.

    Args:
        shift: preference for the autoregressive image; 0 means that it is chosen in half of the pairs.
    """
    scores = shift + generator.logistic(size=(num_readers, num_prompts))
    scores = scores + reader_scatter * generator.normal(size=(num_readers, 1))
    return scores + prompt_scatter * generator.normal(size=(1, num_prompts)) > 0


@pytest.mark.parametrize(
    ("shape", "scatter", "fewest"),
    [
        ((12, 16), (0, 0), 0),  # the exact interval decides, which keeps below 5 %
        ((5, 16), (0.5, 0.5), 0),
        ((20, 8), (0.3, 0.3), 0),
        ((12, 16), (0.5, 0.8), 5),
        ((3, 30), (1, 1), 5),
    ],
)
def test_one_study_in_twenty_finds_a_preference_that_is_not_there(shape, scatter, fewest):
    generator = np.random.default_rng(0)
    found = 0
    for _ in range(300):
        low, high = preference_interval(simulate(generator, *shape, 0.0, *scatter))
        found += not low <= 0.5 <= high
    # At a true rate of 5 % more than 28 of 300, or fewer than 5, come up once in a thousand.
    assert fewest <= found <= 28


def test_readers_that_agree_widen_the_interval_and_a_strong_preference_is_still_found():
    generator = np.random.default_rng(1)
    intervals = (preference_interval(simulate(generator, 12, 16, 1.2, 0.5, 0.8)) for _ in range(100))
    assert sum(low > 0.5 for low, _ in intervals) >= 80
    same = np.repeat(generator.random((1, 16)) < 0.7, 12, axis=0)  # twelve readers, one opinion: 16 choices, not 192
    shuffled = generator.permutation(same.ravel()).reshape(same.shape)
    of_same, of_shuffled = (high - low for low, high in (preference_interval(same), preference_interval(shuffled)))
    assert of_same > 2.5 * of_shuffled


def test_an_interval_is_exact_for_one_reader_or_prompt_and_never_narrower():
    # 14 of 20: Clopper and Pearson's bounds, from the binomial's tails at 2.5 %.
    chosen = np.arange(20) < 14
    for one in (chosen[None], chosen[:, None]):
        assert preference_interval(one) == pytest.approx((0.45721, 0.88107), abs=1e-5)
    assert preference_interval(np.ones((4, 5), bool)) == (pytest.approx(0.025**0.05), 1.0)
    generator = np.random.default_rng(2)
    for _ in range(50):
        chosen = generator.random((4, 6)) < 0.5
        low, high = preference_interval(chosen)
        exact_low, exact_high = share_interval(chosen.sum(), chosen.size)
        assert 0 <= low <= exact_low and exact_high <= high <= 1


# --- who counts --------------------------------------------------------------------------------------


def test_readers_who_do_not_look_are_left_out_and_counted(tmp_path):
    key = make_key()
    paths = write_readers(tmp_path, key, 8, {"far": 0.9})
    paths += [write(tmp_path, f"blind{i}", make_file(key, f"blind{i}", lambda trial: False, i)) for i in range(4)]
    table, about = analyse(paths, key)
    assert (about["num_files"], about["num_readers"], about["num_inattentive"]) == (12, 8, 4)
    assert table.loc[0, "share_autoregressive"] > 0.8
    everybody, others = analyse(paths, key, min_checks=0)
    assert others["num_inattentive"] == 0 and everybody.loc[0, "share_autoregressive"] < 0.7
    with pytest.raises(ValueError, match="none of the 4 readers passed 80% of the 6 attention checks"):
        analyse(paths[8:], key)
    for missed, num_readers in ((1, 1), (2, 0)):  # one missed check of six is forgiven
        checks = {f"c{i}" for i in range(missed)}
        path = write(
            tmp_path, "missed", make_file(key, "r", lambda trial, checks=checks: trial["prompt_id"] not in checks)
        )
        _, about = analyse([paths[0], path], key)
        assert about["num_readers"] == 1 + num_readers
    without = make_key(num_checks=0)
    assert analyse(write_readers(tmp_path, without, 2, {"far": 0.5}), without, min_checks=1.0)[1]["num_readers"] == 2


def test_of_a_reader_s_files_the_last_counts_once(tmp_path):
    key = make_key()
    first = make_file(key, "r", lambda trial: trial["kind"] == CHECK)
    last = make_file(key, "r", always, download=2)
    paths = [write(tmp_path, name, file) for name, file in {"a": last, "b": first, "c": last}.items()]
    table, about = analyse(paths, key)
    assert (about["num_files"], about["num_repeated"], about["num_readers"]) == (3, 2, 1)
    assert table.loc[0, "share_autoregressive"] == 1
    other = write(tmp_path, "d", make_file(key, "r", lambda trial: trial["prompt_id"] != "p3", download=2))
    with pytest.raises(ValueError, match=r"a\.json and .*d\.json have the same reader and download number"):
        analyse([*paths, other], key)


def test_a_method_whose_pairs_were_all_equal_has_no_share(tmp_path):
    key = make_key(methods=("near", "far"))
    key["trials"] = {name: trial for name, trial in key["trials"].items() if trial["method_id"] != "near"}
    near = analyse(write_readers(tmp_path, key, 2, {"far": 0.5}), key)[0].iloc[0]
    assert np.isnan(near["share_autoregressive"]) and near["num_judgements"] == 0 and near["preferred"] == "none"


def test_readers_who_always_press_left_show_up(tmp_path):
    file = make_file(make_key(), "r", always)
    for answer in file["answers"]:
        answer["choice"] = "left"
    _, about = analyse([write(tmp_path, "r", file)], make_key(), min_checks=0)
    assert about["left"][0] == 1


# --- bad files ---------------------------------------------------------------------------------------


def alter(file, **changes):
    return {**file, "answers": [{**file["answers"][0], **changes}, *file["answers"][1:]]}


NO_JSON = [b"[" * 100_000, b"[" + b"9" * 5000 + b"]", b'{"format": NaN}', b"\xff\xfe\x00"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        *((lambda file, content=content: content, "truncated or is not JSON") for content in NO_JSON),
        (lambda file: json.dumps(file)[:-40].encode(), "truncated or is not JSON"),
        (lambda file: [file], "not an answer file"),
        (lambda file: {"name": "package.json"}, "not an answer file"),
        (lambda file: {**file, "study": "feedfeedfeedfeed"}, "study feedfeedfeedfeed, but the key is of study 0123"),
        (lambda file: {**file, "version": 2}, r"malformed at \$\.version"),
        (lambda file: alter(file, choice="both"), r"malformed at \$\.answers\[0\]\.choice"),
        (lambda file: alter(file, left=2), r"malformed at \$\.answers\[0\]\.left"),
        (lambda file: alter(file, milliseconds=-1), r"malformed at \$\.answers\[0\]\.milliseconds"),
        (lambda file: alter(file, trial="t999"), "answers pair 't999', which the study does not have"),
        (lambda file: alter(file, trial=file["answers"][1]["trial"]), "answers pair 't0.*' twice"),
        (lambda file: {**file, "answers": file["answers"][:10]}, "holds 10 of 22 answers; ask its reader to finish"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, spoil, message):
    key = make_key()
    good = make_file(key, "r", always)
    with pytest.raises(ValueError, match=rf"spoilt\.json .*{message}"):
        analyse([write(tmp_path, "good", good), write(tmp_path, "spoilt", spoil(good))], key)


def test_an_empty_folder_says_how_to_get_answers_and_only_a_key_is_read_as_a_key(tmp_path):
    with pytest.raises(ValueError, match=r"no answer file in .*study\.html.*study\.answers"):
        answer_files(tmp_path, "study.html")
    write(tmp_path, "b", {"format": "lantern-study-answers", "version": 1}), write(tmp_path, "a", make_key())
    assert answer_files(tmp_path, "study.html") == [f"{tmp_path}/a.json", f"{tmp_path}/b.json"]
    assert read_key(tmp_path / "a.json") == make_key()
    with pytest.raises(ValueError, match=r"b\.json is not the key"):
        read_key(tmp_path / "b.json")
