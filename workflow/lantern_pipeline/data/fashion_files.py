"""File names of Fashion-MNIST, and a check that the files exist.

Each *half* of the dataset, "train" and the test half "t10k", has a file of images and a file of labels.

Snakemake imports this module while it plans the jobs, so the module does not import torch.
"""

from __future__ import annotations

from pathlib import Path

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
HALVES = ("train", "t10k")  # 60,000 and 10,000 images


def image_file(half: str) -> str:
    """Return the name of the gzip-compressed IDX file of a half's images, uint8 (images, 28, 28)."""
    return f"{half}-images-idx3-ubyte.gz"


def label_file(half: str) -> str:
    """Return the name of its file of labels, class numbers uint8 (images,)."""
    return f"{half}-labels-idx1-ubyte.gz"


def find_fashion(folder: str | Path | None) -> Path:
    """Return the folder with the files of Fashion-MNIST, after checking that all of them exist.

    Args:
        folder: config key data.folder. None for the folder of Debian's package.
    """
    found = DEBIAN_FOLDER if folder is None else Path(folder)
    for name in (file_of(half) for half in HALVES for file_of in (image_file, label_file)):
        if not (found / name).is_file():
            raise ValueError(
                f"Fashion-MNIST needs the file {name} in {found}, which is missing; run `apt-get install "
                "dataset-fashion-mnist`, or name the folder of its four files in config key data.folder"
            )
    return found
