"""How good the measuring models and the trained models are, in words: a reader must know the ruler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe_rulers(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Writes one sentence per trained model from its report.

    Args:
        reports: any of "attribute_classifier", "clip", "tokenizer" and "target", each what its training rule reported.

    Returns:
        Sentences; an empty text for no reports.

    Raises:
        KeyError: a report lacks a value.
    """
    sentences = [_SENTENCES[name](reports[name]) for name in _SENTENCES if name in reports]
    return " ".join(sentence for sentence in sentences if sentence)


def _attribute_classifier(report: Mapping[str, Any]) -> str:
    seen, unseen = (_percent(report[split]["accuracy"]) for split in ("val", "unseen"))
    return f"The attribute classifier reads {seen} of the attributes of real held-out images, {unseen} in unseen combinations."


def _clip(report: Mapping[str, Any]) -> str:
    there, back = (_percent(report[f"val_{way}_accuracy"]) for way in ("image_to_text", "text_to_image"))
    return (
        f"The CLIP model finds a real held-out image's caption among {report['num_candidates']} in {there} of cases, "
        f"and the image of a caption in {back}."
    )


def _tokenizer(report: Mapping[str, Any]) -> str:
    if "psnr_db" not in report:
        return f"The image tokenizer is the published {report['checkpoint']}."
    read = f", with {_percent(report['accuracy'])} of their attributes still read" if "accuracy" in report else ""
    return (
        f"The image tokenizer reconstructs held-out images at {report['psnr_db']:.1f} dB{read}, and uses "
        f"{_percent(report['codes_used_share'])} of its codes."
    )


def _target(report: Mapping[str, Any]) -> str:
    if "val_cross_entropy" not in report:
        size = f"{report['num_parameters'] / 1e6:.0f} million parameters"
        return f"The target is the published {report['checkpoint']}, {size}."
    return (
        f"The target's cross-entropy on held-out images is {report['val_cross_entropy']:.2f} nats per token, without "
        "guidance; a weaker target would flatter every speed-up."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


_SENTENCES = {"target": _target, "tokenizer": _tokenizer, "attribute_classifier": _attribute_classifier, "clip": _clip}
