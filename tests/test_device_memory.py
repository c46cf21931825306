"""The estimate of a step's memory, and the micro-batch that is chosen by it."""

import json
import os
import types

import pytest
import tensorflow.compat.v1 as tf
from conftest import FIXTURES, ROOT, write_text

import cli
import device_memory
import modeling

SHAPE = device_memory.Shape(512, 76)


def config_of(size):
    return modeling.AlbertConfig.from_json_file(
        os.path.join(ROOT, "albert_config", "albert_config_%s.json" % size))


@pytest.mark.parametrize("size", ["tiny", "base", "large", "xlarge", "xxlarge"])
def test_parameters_are_counted(size):
    with open(os.path.join(FIXTURES, "parameter_tables.json"), encoding="utf-8") as stream:
        total = json.load(stream)[size]["total"]
    assert abs(device_memory.parameters(config_of(size)) - total) < 0.01 * total


@pytest.mark.parametrize("batch_size, allowed", [(32, {32, 16, 8, 4, 2, 1}), (12, {12, 4, 2, 1}),
                                                 (7, {7, 1})])
def test_the_largest_fitting_size_is_chosen(batch_size, allowed):
    config, chosen = config_of("base"), []
    for gigabytes in (1000, 40, 20, 10, 5, 3, 2, 1.2):
        memory = int(gigabytes * 2 ** 30)
        rows, again = device_memory.choose_micro_batch(config, SHAPE, batch_size, memory)
        assert rows in allowed
        usable = device_memory.USABLE * memory
        for larger in (size for size in allowed if size > rows):
            assert device_memory.step_bytes(config, SHAPE, larger, batch_size, again) > usable
        if again:
            assert device_memory.step_bytes(config, SHAPE, 1, batch_size, False) > usable
        chosen.append((again, -rows))
    assert chosen == sorted(chosen) and chosen[0] == (False, -batch_size)


def test_what_the_flags_say_is_kept_and_warned_of(caplog):
    found = device_memory.choose_micro_batch(config_of("xxlarge"), SHAPE, 4, 2 ** 30, 4, "false")
    assert found == (4, False)
    assert "above 80 % of the device's memory" in caplog.text
    assert device_memory.choose_micro_batch(
        config_of("tiny"), SHAPE, 4, 2 ** 40, 0, "true") == (4, True)


def test_a_containers_limit_counts(tmp_path):
    machine = device_memory.host_memory(())
    limit = write_text(tmp_path / "limit", "1048576\n")
    unlimited = write_text(tmp_path / "max", "max\n")
    assert device_memory.host_memory((unlimited, str(tmp_path / "none"))) == machine
    assert device_memory.host_memory((unlimited, limit)) == 1048576


@pytest.mark.parametrize("rows, again, words", [
    (8, "false", "--micro_batch_size=4 or --recompute=true"), (1, "false", "--recompute=true"),
    (1, "true", "shorter --max_seq_length")])
def test_a_lack_of_memory_ends_in_advice(rows, again, words):
    run = types.SimpleNamespace(micro_batch_size=rows, recompute=again)
    for error in (MemoryError("no more"), tf.errors.ResourceExhaustedError(
            None, None, "OOM when allocating tensor")):
        with pytest.raises(cli.UserError, match="out of memory.*" + words):
            with device_memory.advice(run):
                raise error
    with pytest.raises(tf.errors.ResourceExhaustedError), device_memory.advice(run):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
