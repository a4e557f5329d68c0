"""Where weights are put together while they arrive."""

from __future__ import annotations

import os
import pathlib
import secrets
from collections.abc import Sequence

import grpc

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.proto.refusal import Refusal
from isocompute_jax.service.weights.shared_file import SharedFolder, sweep
from isocompute_jax.service.weights.weight_file import WeightWriter

PREFIX = "isocompute-staging-"


class StagingArea:
    """Files of all tensors; one is kept between updates, because fresh pages cost more than what they hold.

    Args:
      directory: where their folder is made; folders that dead processes left there are removed.
      tensors: what each file holds.

    Raises:
      InputError: the directory cannot be written.
    """

    def __init__(self, directory: str, tensors: Sequence[TensorSpec]):
        self.directory = os.path.realpath(directory)
        self.tensors = tuple(tensors)
        self._idle: list[WeightWriter] = []
        check_directory(directory)
        sweep(self.directory, PREFIX)
        self._folder = SharedFolder(pathlib.Path(self.directory) / f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}")

    def take(self) -> WeightWriter:
        """A file to write to; what it holds is anything."""
        if self._idle:
            return self._idle.pop()
        file = self._folder.new_file()
        try:
            return WeightWriter(file, self.tensors)
        except OSError as error:
            file.remove()
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"the server cannot stage weights in {self.directory}: {error}"
            ) from error

    def give_back(self, writer: WeightWriter) -> None:
        """Keeps a file for the next update, unless one is kept already."""
        if self._idle:
            writer.file.remove()
        else:
            self._idle.append(writer)

    def close(self) -> None:
        """Removes every file."""
        self._idle.clear()
        self._folder.remove()


def check_directory(directory: str) -> None:
    """Raises InputError for a folder in which weights cannot be staged."""
    if not os.path.isdir(directory) or not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(f"--weights_dir={directory}: not a folder that can be written")
