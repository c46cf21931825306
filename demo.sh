#!/usr/bin/env bash
# Set-up, then the main job on the text that is shipped: data/news_zh_1.txt -> TFRecords -> a short
# pre-training of the tiny model -> evaluation. All of it lands in output/, made anew at each call.
# The interpreter is chosen as in setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python="$(./setup.sh)"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
model=(--bert_config_file=albert_config/albert_config_tiny.json --max_seq_length=128)

step() { printf '\n== %s\n' "$*"; }
rm -rf output && mkdir output

step "1. data/news_zh_1.txt -> output/tf_news_zh_1.tfrecord"
"$python" create_pretraining_data.py --input_file=data/news_zh_1.txt \
  --output_file=output/tf_news_zh_1.tfrecord --vocab_file=albert_config/vocab.txt \
  --do_whole_word_mask=True --max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=5

step "2. pre-training of the tiny model, 80 steps from scratch, and evaluation"
"$python" run_pretraining.py "${model[@]}" --input_file=output/tf_news_zh_1.tfrecord \
  --output_dir=output/pretraining --do_train=True --do_eval=True --max_predictions_per_seq=20 \
  --train_batch_size=32 --eval_batch_size=32 --num_train_steps=80 --num_warmup_steps=8 \
  --learning_rate=0.00176 --save_checkpoints_steps=80
