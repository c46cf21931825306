"""--precision and --xla: what does not run, or would be ignored in silence, is refused."""

import pytest
import tensorflow.compat.v1 as tf

import cli
import precision


@pytest.mark.parametrize("arguments, words", [
    (("fp16", False), "fp16, which does not run on a CPU"),
    (("bf16", False, False, 2), "bf16, which does not run on a GPU: take fp16"),
    (("fp16", False, True), "fp16, which does not run on a TPU: take bf16"),
    (("fp32", True, True), "--xla is set with --use_tpu"),
])
def test_refused(arguments, words):
    with pytest.raises(cli.UserError, match=words):
        precision.check_precision(*arguments)


@pytest.mark.parametrize("arguments", [("fp32", False), ("fp32", True), ("fp16", True, False, 1),
                                       ("bf16", False, True)])
def test_allowed(arguments):
    precision.check_precision(*arguments)


def test_bf16_on_a_cpu_needs_the_newer_runtime():
    if tf.__version__ < "2":
        with pytest.raises(cli.UserError, match="take TensorFlow 2.15 or fp32"):
            precision.check_precision("bf16", False)
    elif precision.cpu_has("avx512f"):
        precision.check_precision("bf16", False)
    else:
        with pytest.raises(cli.UserError, match="AVX-512"):
            precision.check_precision("bf16", False)
