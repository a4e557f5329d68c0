"""The parameters of Hugging Face directories, in and out: safetensors, in one file or in several with an index.

Unknown, missing and mis-shaped tensors are errors that name the key, and so is whatever two readers could understand
differently. Nothing is half-written: a directory is filled under a temporary name and renamed.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.hf_config import write_config
from isocompute_jax.model.hf_layout import hf_tensor_shapes, hf_tensors, params_from_tensors
from isocompute_jax.model.params import Params, map_specs
from isocompute_jax.records.errors import InputError

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
LANGUAGE_MODEL, SEEING = "language_model.", ("vision_model.", "multi_modal_projector.")
"""What tensors of Llama 4 are called that are read, and that are not: it also sees, and only its text is trained."""
MAX_FILE_BYTES = 5 * 10**9
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


def load_params(directory: str | os.PathLike[str], config: ModelConfig, *, shardings: Params | None = None) -> Params:
    """Reads the parameters of a checkpoint in `config.dtype`: of each file only what this process's devices hold.

    Args:
      directory: a Hugging Face directory.
      config: what `load_config` read.
      shardings: where each parameter goes (`param_shardings`); the default device when None.

    Raises:
      InputError: a file is missing, corrupt or one too many; a key is unknown, missing or mis-shaped; or there is an
        output head of its own although config.json ties it to the embeddings.
    """
    directory = pathlib.Path(directory)
    prefix, files = _of_text(config, _tensor_files(directory))
    _check_keys(directory, config, files)
    _check_tied_head(config, files, prefix)
    # Committed to its device, as restored checkpoints are: else a resumed run would compile everything anew.
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0]) if shardings is None else None
    with contextlib.ExitStack() as stack:
        opened = {path: stack.enter_context(safetensors.safe_open(path, "numpy")) for path in set(files.values())}
        for name, shape in hf_tensor_shapes(config):
            found = tuple(opened[files[name]].get_slice(prefix + name).get_shape())
            if found != shape:
                raise InputError(f"{files[name]}: {name} has shape {found}, config.json asks for {shape}")

        def read(name: str, index: tuple[slice, ...]) -> np.ndarray:
            return opened[files[name]].get_slice(prefix + name)[index]

        return params_from_tensors(config, read, shardings=shardings or map_specs(lambda _: here, config))


def save_checkpoint(
    directory: str | os.PathLike[str],
    config: ModelConfig,
    params: Params,
    *,
    tokenizer_from: str | os.PathLike[str] | None,
    dtype: Any = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    writes: bool = True,
) -> None:
    """Writes a Hugging Face directory that transformers and vLLM load; an older `directory` stays until it is whole.

    Where several processes hold the parameters, each of them must call it, and one of them writes.

    Args:
      directory: where to.
      config: model shape.
      params: parameters.
      tokenizer_from: directory whose tokenizer files are copied along; None writes none.
      dtype: that they are cast to, layer by layer; None saves them bit for bit in their own.
      max_file_bytes: start a new safetensors file beyond this size.
      writes: whether this process does.
    """
    tensors = hf_tensors(config, params, dtype=dtype)
    if not writes:
        for _ in tensors:
            pass
        return
    write_checkpoint(directory, config, tensors, tokenizer_from=tokenizer_from, max_file_bytes=max_file_bytes)


def write_checkpoint(
    directory: str | os.PathLike[str],
    config: ModelConfig,
    tensors: Iterator[tuple[str, np.ndarray]],
    *,
    tokenizer_from: str | os.PathLike[str] | None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """As `save_checkpoint`, of names and tensors that are in Hugging Face layout already."""
    with whole_directory(directory) as temporary:
        _write_tensors(temporary, tensors, max_file_bytes)
        write_config(temporary, config, token_ids={} if tokenizer_from is None else _token_ids(tokenizer_from))
        if tokenizer_from is not None:
            for name in TOKENIZER_FILES:
                source = pathlib.Path(tokenizer_from) / name
                if source.exists():
                    shutil.copyfile(source, temporary / name)


@contextlib.contextmanager
def whole_directory(directory: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A temporary directory to fill, which is `directory` once the block has ended; an older one stays until then."""
    directory = pathlib.Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    try:
        yield temporary
        for path in temporary.iterdir():
            path.chmod(0o644)  # safetensors are written for their owner alone
        temporary.chmod(0o755)
        _replace(temporary, directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _token_ids(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Ids at which a sequence begins, ends and is padded: those of a config.json, or else of the tokenizer's files.

    Without the second, transformers would not know where to stop.
    """
    found: dict[str, Any] = {}
    config, names, tokenizer = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for path in (pathlib.Path(source) / name for name in ("config.json", "tokenizer_config.json", "tokenizer.json"))
    )
    config = config.get("text_config", {}) | config
    ids = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
    for name in ("bos_token", "eos_token", "pad_token"):
        token = names.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        number = config.get(f"{name}_id", None)
        number = ids.get(token) if number is None else number
        if number is not None:
            found[f"{name}_id"] = number
    return found


def _replace(new: pathlib.Path, directory: pathlib.Path) -> None:
    """Puts `new` in place of `directory`. The old one is moved aside first and deleted last: nothing is ever lost."""
    if not directory.exists():
        new.rename(directory)
        return
    aside = new.with_name(f"{new.name}.old")
    directory.rename(aside)
    try:
        new.rename(directory)
    except BaseException:
        aside.rename(directory)
        raise
    shutil.rmtree(aside)


def _tensor_files(directory: pathlib.Path) -> dict[str, pathlib.Path]:
    """Tensor name -> file that holds it."""
    found: dict[str, pathlib.Path] = {}
    for name in _file_names(directory):
        path = directory / name
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                keys = list(file.keys())
        except FileNotFoundError:
            raise InputError(f"{directory}: {name} is missing; the checkpoint is incomplete") from None
        except (safetensors.SafetensorError, OSError) as error:
            raise InputError(f"{path}: corrupt safetensors file ({error}); download or save it again") from error
        twice = sorted(found.keys() & keys)
        if twice:
            raise InputError(
                f"{directory}: {found[twice[0]].name} and {name} both hold {_listed(twice)}; remove what is stale"
            )
        found.update(dict.fromkeys(keys, path))
    return found


def _of_text(config: ModelConfig, files: dict[str, pathlib.Path]) -> tuple[str, dict[str, pathlib.Path]]:
    """What stands before the names of the language model of a model that also sees, and its tensors without it."""
    if config.architecture != "llama4_text" or not any(name.startswith(LANGUAGE_MODEL) for name in files):
        return "", files
    seeing = tuple(name for name in files if name.startswith(SEEING))
    return LANGUAGE_MODEL, {name.removeprefix(LANGUAGE_MODEL): files[name] for name in files.keys() - seeing}


def _file_names(directory: pathlib.Path) -> list[str]:
    """The safetensors files of a checkpoint: the single one, or those of the index."""
    index = directory / INDEX
    if not index.exists():
        return [SINGLE_FILE]
    try:
        names = sorted(
            {os.fspath(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        )
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{index}: not a safetensors index ({error!r}); download the checkpoint again") from error
    if outside := next((name for name in names if pathlib.PurePath(name).name != name), ""):
        raise InputError(f"{index}: {outside!r} is no file beside it; the files of a checkpoint lie in one directory")
    if SINGLE_FILE not in names and (directory / SINGLE_FILE).exists():
        raise InputError(
            f"{directory} holds both {SINGLE_FILE} and {INDEX}, which does not name it, and readers differ in which "
            "they take; remove the one that is stale"
        )
    return names


def _read(path: pathlib.Path, name: str) -> np.ndarray:
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.get_tensor(name)


def _check_keys(directory: pathlib.Path, config: ModelConfig, files: dict[str, pathlib.Path]) -> None:
    wanted = {name for name, _ in hf_tensor_shapes(config)}
    allowed = wanted | ({HEAD} if config.tied_embeddings else set())
    missing, unknown = sorted(wanted - set(files)), sorted(set(files) - allowed)
    if missing:
        raise InputError(f"{directory}: the checkpoint lacks {_listed(missing)}, which config.json asks for")
    if unknown:
        raise InputError(f"{directory}: the checkpoint has {_listed(unknown)}, which config.json does not ask for")


def _check_tied_head(config: ModelConfig, files: dict[str, pathlib.Path], prefix: str) -> None:
    """Some writers store a tied head once more: that is harmless as long as it is the embedding table."""
    if config.tied_embeddings and HEAD in files:
        head, embeddings = (_read(files[name], prefix + name) for name in (HEAD, EMBEDDINGS))
        if not np.array_equal(head, embeddings, equal_nan=True):
            raise InputError(
                f"{files[HEAD]}: {HEAD} differs from {EMBEDDINGS} although tie_word_embeddings is true in config.json: "
                "set that to false if the model was trained with a head of its own, or remove the tensor"
            )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _write_tensors(directory: pathlib.Path, tensors_of: Iterator[tuple[str, np.ndarray]], max_file_bytes: int) -> None:
    files: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name, tensor in tensors_of:
        if files[-1] and size + tensor.nbytes > max_file_bytes:
            files.append({})
            size = 0
        files[-1][name] = tensor
        size += tensor.nbytes
    metadata = {"format": "pt"}  # transformers refuses files without it
    if len(files) == 1:
        safetensors.numpy.save_file(files[0], directory / SINGLE_FILE, metadata)
        return
    weight_map: dict[str, str] = collections.OrderedDict()
    for number, tensors in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        safetensors.numpy.save_file(tensors, directory / name, metadata)
        weight_map.update(dict.fromkeys(tensors, name))
    total = sum(tensor.nbytes for tensors in files for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
