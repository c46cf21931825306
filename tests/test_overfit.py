"""Twenty sentences, 300 steps of the two-layer toy: from text to weights, learnt by heart."""

import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_records import run_script
from helpers.toys import write_text

import create_pretraining_data
import run_pretraining
from training import precision

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SENTENCES = ["".join(CHARACTERS[(start * 7 + place * (start % 5 + 1)) % len(CHARACTERS)] + " "
                     for place in range(6 + start % 4)) + "。" for start in range(20)]


MODES = [["--micro_batch_size=8", "--recompute=true"]]
if precision.cpu_has("avx512f") and not tf.__version__.startswith("1."):
    MODES.append(["--precision=bf16", "--micro_batch_size=16"])


@pytest.mark.parametrize("mode", MODES, ids=" ".join)
def test_twenty_sentences_are_learnt(toy_vocab, toy_config, tmp_path, caplog, capsys, mode):
    documents = ["\n".join(SENTENCES[start:start + 4]) for start in range(0, 20, 4)]
    text = write_text(tmp_path / "text.txt", "\n\n".join(documents) + "\n")
    records = str(tmp_path / "tf_text.tfrecord")
    run_script(create_pretraining_data, "--input_file=" + text, "--output_file=" + records,
               "--vocab_file=" + toy_vocab, "--max_seq_length=48", "--max_predictions_per_seq=8",
               "--dupe_factor=4", "--num_workers=1", "--short_seq_prob=0")
    run_script(run_pretraining, "--bert_config_file=" + toy_config, "--input_file=" + records,
               "--output_dir=" + str(tmp_path / "model"), "--do_train", "--do_eval",
               "--max_seq_length=48", "--max_predictions_per_seq=8", "--train_batch_size=32",
               "--num_train_steps=300", "--num_warmup_steps=20", "--learning_rate=0.045",
               "--log_every_steps=100", "--save_checkpoints_steps=300", *mode)
    found = dict(line.split(" = ") for line in capsys.readouterr().out.splitlines()
                 if " = " in line)
    assert float(found["mlm_accuracy"]) > 0.95
    assert float(found["sop_accuracy"]) > 0.95
    assert abs(float(found["loss"]) - float(found["mlm_loss"]) - float(found["sop_loss"])) < 1e-5
    assert caplog.text.count("  mlm_accuracy ") == 3
