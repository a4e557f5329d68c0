"""Errors that know their fields, and fields of a run's config in messages."""

import pickle
from typing import Any

import pytest

from isocompute_jax import learner
from isocompute_jax.experiment.config import ThinkingConfig, from_dict
from isocompute_jax.records.errors import CONFIG, Field, InputError, fields_called, set_by_flags


def test_a_field_is_called_as_its_user_sets_it():
    error = InputError(
        Field("low", "ThinkingConfig."), " = 3 is above ", Field("high", "ThinkingConfig."), ": raise it"
    )
    assert str(error) == "ThinkingConfig.low = 3 is above ThinkingConfig.high: raise it"
    assert error.field == "ThinkingConfig.low"
    assert str(error.renamed("config.")) == "config.low = 3 is above config.high: raise it"
    flags = error.renamed("--", {"low": "--thinking_low"})
    assert str(flags) == "--thinking_low = 3 is above --high: raise it"
    assert pickle.loads(pickle.dumps(flags)).args == flags.args
    with pytest.raises(InputError, match=r"^config\.packing\.row_tokens is 8$"), fields_called("config.packing."):
        raise InputError(Field("row_tokens"), " is 8")


def test_a_text_names_no_field_apart():
    error = InputError("file.jsonl:1: prompt: missing")
    assert (str(error), error.field) == ("file.jsonl:1: prompt: missing", "")
    assert str(error.renamed("--")) == str(error)


def test_the_same_fault_for_a_library_and_for_a_command():
    with pytest.raises(InputError) as library:
        ThinkingConfig(low=3, high=2)
    with pytest.raises(InputError) as command:
        from_dict({"sampling": {"thinking": {"low": 3, "high": 2}}})
    assert library.value.field == "ThinkingConfig.low" and command.value.field == "config.sampling.thinking.low"
    assert str(command.value).startswith(
        "config.sampling.thinking.low = 3 must lie in 1 .. 2, config.sampling.thinking.high: thinking is interrupted"
    )
    assert str(library.value).replace("ThinkingConfig.", "config.sampling.thinking.") == str(command.value)


def test_the_learner_speaks_of_its_own_parameters():
    sizes: Any = {
        "problems_per_batch": 1,
        "group_size": 2,
        "max_prompt_tokens": 5,
        "max_tokens": 6,
        "microbatch_tokens": 64,
    }
    with pytest.raises(InputError, match=r"^row_tokens = 8, .* \(max_prompt_tokens = 5 and max_tokens = 6\)"):
        learner.pack_shape(**sizes, row_tokens=8)
    with pytest.raises(InputError, match=r"^row_nodes = 8, .* raise row_nodes to 10"):
        learner.tree_shape(**sizes, row_nodes=8)


def test_a_field_of_a_config_is_its_flag_where_it_has_one():
    message = CONFIG.service.ca_file
    assert f"{message}, {CONFIG.service.token_file}" == "config.service.ca_file, config.service.token_file"
    with set_by_flags({"config.service.ca_file": "--ca_file"}):
        assert f"{message}, {CONFIG.service.token_file}" == "--ca_file, config.service.token_file"
        with set_by_flags({}):
            assert str(message) == "config.service.ca_file"
        assert str(message) == "--ca_file"
    assert str(message) == "config.service.ca_file"
