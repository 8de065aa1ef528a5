"""Weight files of any layout, each opened once: PyTorch pickles and safetensors, in one or several files.

Code in a file is never executed. An *index* is the JSON file that names the file of each tensor, if there are several.
"""

from __future__ import annotations

import argparse
import logging
import pickle
import re
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from lantern.io import DamagedFileError, check_finite_weights, open_tensors, read_json
from lantern.models.stored import remove_wrappers, report_of

T = TypeVar("T", int, float, str)

_TOP_LEVEL_KEYS = ("model", "module", "state_dict")  # of plain or DDP training, of DeepSpeed, and of other programs
# Files that are looked for in a folder, best first.
_NAMES = [f"{stem}{ending}" for stem in ("model.safetensors", "pytorch_model.bin") for ending in ("", ".index.json")]
META_NORM = "layers.0.attention.q_normalization.weight"  # only Meta's files have this tensor
# The key is the class of Lumina-mGPT's authors, which has the same weights as the value.
_SAME_WEIGHTS = {"ChameleonXLLMXForConditionalGeneration": "ChameleonForConditionalGeneration"}
PIPELINE_MODEL = "vision_language_encoder"  # folder of the model in a diffusers pipeline such as GLM-Image's
_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt"}
# Tables of the rotary embedding, which the models compute.
_POSITION_TABLE = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|freqs_cis)")
# Messages of PyTorch's restricted unpickler about a function or class that it refuses to call. The group matches its
# name, which some of the messages lack.
_FOREIGN_CODE = re.compile(r"GLOBAL (\S+) (?:was not an allowed|whose module)|call reduce|Can only (?:build|create)")
# Classes of values that a training program may store with the weights. Lantern does not need them, and replaces them by
# `_Inert` objects, so that none of their constructors runs.
_INERT_NAMES = (
    *("numpy.dtype", "numpy.ndarray", "datetime.datetime", "datetime.timedelta"),
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    *(
        f"{module}.{kind}Path"
        for module in ("pathlib", "pathlib._local")
        for kind in ("Posix", "Windows", "PurePosix", "PureWindows")
    ),
)
# Errors that `torch.load` may raise, since the bytes of a damaged pickle may mean anything.
_READ_ERRORS = (pickle.UnpicklingError, RuntimeError, OSError, EOFError, LookupError, ValueError, TypeError)
_READ_ERRORS += (AttributeError,)

log = logging.getLogger(__name__)


@dataclass
class WeightFile:
    """The weights and settings in a file or folder.

    Attributes:
        path: file of the weights, or their index.
        tensors: tensors by name, after `remove_wrappers`.
        settings: content of the config.json in the same folder. None if there is none, or if Lantern wrote the file.
        args: arguments of the training program. Empty if they are not in the file.
        metadata: what `save_model` wrote besides the tensors, with the model's kind and config. None for other files.
    """

    path: Path
    tensors: dict[str, torch.Tensor]
    settings: dict[str, Any] | None = None
    args: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None

    @property
    def layout(self) -> str:
        """Layout of a target: "lantern", "meta" (Chameleon in Meta's), "transformers" or "llamagen"."""
        if self.metadata is not None:
            return "lantern"
        if META_NORM in self.tensors:
            return "meta"
        # Only the LANTERN authors' LlamaGen states an input_type. transformers does not have its class.
        is_llamagen = self.model_class is None or (self.settings or {}).get("input_type")
        return "llamagen" if is_llamagen else "transformers"

    @property
    def model_class(self) -> str | None:
        """The transformers class that config.json names, after `_SAME_WEIGHTS`, or None if it names none."""
        names = (self.settings or {}).get("architectures")
        return _SAME_WEIGHTS.get(names[0], names[0]) if names and isinstance(names, list) else None

    @property
    def report(self) -> dict[str, Any]:
        """The report of the training, if Lantern wrote the file, else an empty dict."""
        return report_of(self.metadata or {})

    @property
    def settings_path(self) -> Path:
        """Path of the config.json, whether it exists or not."""
        return self.path.parent / "config.json"

    def setting(self, key: str, kind: type[T] = int, default: T | None = None) -> T:
        """Return a value of config.json, which must be a string or a number above 0.

        Without a default, the key is required. Raises a ValueError for a missing or wrong value, and a
        FileNotFoundError if there is no config.json.
        """
        if self.settings is None:
            raise FileNotFoundError(
                2,  # errno.ENOENT, which an error of `open` has, too
                f"there is no file {self.settings_path}: {self.path.name} needs the config.json of its repository "
                "in the same folder, which states the sizes and the norms' eps",
            )
        value = self.settings.get(key, default)
        if value is None:
            raise ValueError(f"{self.settings_path} lacks the key {key}; fetch it from the checkpoint's repository")
        # An integer may stand for a float. A bool is an int in Python, but not here.
        is_right = isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)
        if not is_right or (not isinstance(value, str) and value <= 0):
            wanted = "text" if kind is str else "a number above 0" if kind is float else "an integer above 0"
            raise ValueError(f"{self.settings_path}: {key} should be {wanted}, found {value!r}")
        return kind(value)

    def require(self, *names: str) -> None:
        """Raise a ValueError if a tensor of these names is missing."""
        for name in names:
            if name not in self.tensors:
                raise ValueError(f"{self.path} lacks the tensor {name}; fetch it again, or choose another checkpoint")


def read_weights(path: Path) -> WeightFile:
    """Read the weights in a file or folder, and the config.json in the same folder.

    What wrappers such as torch.compile add to names is removed. Tables of the rotary embedding are left out.

    Args:
        path: a pickle (`.pt`, `.pth`, `.bin`), a safetensors file, an index (`.index.json`), or a folder with one of
            these.

    Raises:
        FileNotFoundError: the file or folder, or a file of the index is missing, or the folder holds no weights.
        ValueError: there are several weight files, a file is damaged, a pickle holds code or something other than
            weights, or weights are not finite.
    """
    file = find_weights(path)
    result = WeightFile(file, {})
    if file.name.endswith(".index.json"):
        tensors = _read_shards(file)
    else:
        tensors, result.metadata, result.args = _read_file(file)
    tensors = remove_wrappers(tensors, file)
    if result.metadata is None:  # a file of another program
        if tables := [name for name in tensors if _POSITION_TABLE.fullmatch(name)]:
            log.info("%s: left out %d tables of positions, such as %s; they are computed", file, len(tables), tables[0])
        tensors = {name: tensor for name, tensor in tensors.items() if name not in tables}
        if result.settings_path.is_file():
            result.settings = read_object(result.settings_path)
    check_finite_weights(file, tensors)
    result.tensors = tensors
    return result


def find_weights(path: Path) -> Path:
    """Return the path of the weight file in a folder, or the path itself if it is a file.

    Of a diffusers pipeline, the subfolder `vision_language_encoder` is searched.
    """
    if path.is_file():
        return path
    if (inner := path / PIPELINE_MODEL).is_dir():
        return find_weights(inner)
    if not path.is_dir():
        raise FileNotFoundError(2, f"there is no file or folder {path}; fetch the checkpoint or correct its path")
    for name in _NAMES:
        if (path / name).is_file():
            return path / name
    # A file of any other name will do if it is the only one.
    found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    if len(found) == 1:
        return found[0]
    names = ", ".join(file.name for file in found or sorted(path.iterdir())) or "nothing"
    if not found:
        wanted = "model.safetensors, pytorch_model.bin, one of their .index.json, or a .pt file"
        raise FileNotFoundError(2, f"{path} should hold {wanted}, found {names}")
    raise ValueError(f"{path} should hold one weight file, found {names}; name the file instead of the folder")


def check_equal(path: Path, key: str, expected: object, found: object, name: str) -> None:
    """Raise a ValueError if the value `key` of a file differs from the value `name` of the model's config."""
    if expected != found:
        raise ValueError(
            f"{path}: {key} should be {expected} to fit the model ({name}), found {found}; choose the file of this "
            f"model, or correct {name}"
        )


def load_pickle(path: Path) -> object:
    """Read a file that `torch.save` wrote, in either of its formats: a zip archive, or a plain pickle."""
    # A zip archive, PyTorch's default since version 1.6, can be mapped into memory. Its tensors are then read only when
    # they are used.
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
        _check_members(path)
    # LlamaGen's training stores its command line, an argparse.Namespace of plain values.
    # A pair lets `_Inert` stand for the class of this name.
    harmless = [argparse.Namespace, *((_Inert, name) for name in _INERT_NAMES)]
    try:
        with torch.serialization.safe_globals(harmless):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)  # noqa: TID251
    except _READ_ERRORS as error:
        # PyTorch has no error of its own for foreign code: only the message tells.
        match = _FOREIGN_CODE.search(str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if match:
            raise ValueError(
                f"{path} is a pickle that wants to run {match[1] or 'code'}, expected nothing but tensors and plain "
                "values; it was not run: do not trust this file"
            ) from error
        size = path.stat().st_size
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ValueError(
            f"{path} ({size} bytes) is truncated or is not a PyTorch file ({reason}); fetch it again"
        ) from error


class _Inert:
    """A placeholder for an object in a pickle, which ignores arguments and state of the object."""

    def __new__(cls, *arguments: object) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _check_members(path: Path) -> None:
    """Raise a ValueError if a file in a zip archive does not match its checksum, or if the archive holds code."""
    try:
        # PyTorch does not verify the checksums of an archive that it maps into memory.
        with zipfile.ZipFile(path) as archive:
            # A TorchScript archive, which runs while it is loaded, is recognised by its table of constants.
            is_program = any(name.endswith("/constants.pkl") for name in archive.namelist())
            for member in [] if is_program else archive.infolist():
                if not member.CRC:
                    continue  # PyTorch writes 0 if it computed no checksum
                with archive.open(member) as content:
                    # Reading to the end makes zipfile compare the checksum. Pieces of 4 MB keep memory small.
                    while content.read(1 << 22):
                        pass
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from error
    if is_program:
        raise ValueError(
            f"{path} is a TorchScript archive, a program that runs while it is loaded, expected nothing but tensors; "
            "give the same weights as safetensors (of OpenAI's CLIP: open_clip_model.safetensors)"
        )


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file, or raise a ValueError if it is no JSON object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} should hold keys and values, found {type(value).__name__}; fetch it again")
    return value


def _read_shards(index: Path) -> dict[str, torch.Tensor]:
    shards = read_object(index).get("weight_map")  # tensor name -> file name
    if not isinstance(shards, dict) or not shards:
        raise ValueError(f"{index} should hold the key weight_map, tensor by file; fetch it again")
    tensors: dict[str, torch.Tensor] = {}
    # By file, so that each is opened once.
    for name in sorted(set(shards.values())):
        shard = index.parent / Path(name).name  # never a file outside the folder
        if not shard.is_file():
            raise FileNotFoundError(2, f"there is no file {shard}, which {index.name} names; fetch it too")
        found, _, _ = _read_file(shard)
        for key in [key for key, file_name in shards.items() if file_name == name]:
            if key not in found:
                raise ValueError(f"{shard} lacks the tensor {key}, which {index.name} names; fetch both again")
            tensors[key] = found[key]
    return tensors


def _read_file(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any] | None, dict[str, Any]]:
    """Return `tensors`, `metadata` and `args` of a `WeightFile`, from one weight file."""
    try:
        return *open_tensors(path), {}
    except DamagedFileError:
        with open(path, "rb") as file:
            start = file.read(16)
        if start[8:9] == b"{":  # a safetensors file: eight bytes for the length of the header, then JSON
            raise
    # PK begins a zip archive, 0x80 a pickle. "<" is a web page, "v" a pointer of git-lfs ("version ...").
    if not start.startswith((b"PK", b"\x80")):
        # `and start`: an empty file begins with b"", which is in every bytes object.
        hint = ", which looks like a web page or a pointer to a file" if start[:1] in b"<v" and start else ""
        raise ValueError(f"{path} should be a PyTorch or safetensors file, found {start!r}{hint}; fetch it again")
    if path.suffix == ".safetensors":
        raise ValueError(f"{path} is a pickle, not what its name says; rename it to .bin or fetch it again")
    tensors, args = _unwrap(path, load_pickle(path))
    return tensors, None, args


def _unwrap(path: Path, value: object) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Find tensors and the arguments of the training program in the content of a pickle."""
    if not isinstance(value, dict):
        raise ValueError(f"{path} should hold tensors by name, found a {type(value).__name__}")
    # The weights are the whole content, or the entry under one of `_TOP_LEVEL_KEYS`.
    if value and all(isinstance(part, torch.Tensor) for part in value.values()):
        return dict(value), {}
    key = next((key for key in _TOP_LEVEL_KEYS if key in value), None)
    if key is None:
        found = ", ".join(map(str, list(value)[:8])) or "nothing"
        raise ValueError(f"{path}: top-level key should be one of {', '.join(_TOP_LEVEL_KEYS)}, found {found}")
    inner = value[key]
    args = value.get("args")
    if not isinstance(inner, dict) or not inner:
        raise ValueError(f"{path}: top-level key {key} should hold tensors by name, found {inner!r:.60}")
    strange = [name for name, part in inner.items() if not isinstance(part, torch.Tensor)]
    if strange:
        raise ValueError(f"{path}: {key} should hold tensors by name, found something else under {strange[0]!r}")
    args = vars(args) if isinstance(args, argparse.Namespace) else args
    args = args if isinstance(args, dict) else {}
    # What an `_Inert` replaced is unknown.
    return dict(inner), {name: part for name, part in args.items() if not isinstance(part, _Inert)}
