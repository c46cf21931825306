#!/usr/bin/env bash
# Set-up, then the main job on the texts that are shipped: data/news_zh_1.txt -> TFRecords -> a short
# pre-training of the tiny model -> evaluation -> fine-tuning on data/lcqmc_sample -> predictions; beside
# it the same fine-tuning from scratch and from the model that is shipped.
# All of it lands in output/, made anew at each call; what else is there stays.
# The interpreter is chosen as in setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python="$(./setup.sh)"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}" PYTHONWARNINGS="${PYTHONWARNINGS:-ignore}"
model=(--bert_config_file=albert_config/albert_config_tiny.json)

step() { printf '\n== %s\n' "$*"; }
figure() { sed -n "s/^$2 = //p" "$1/eval_results.txt" | cut -c 1-6; }
mkdir -p output
rm -rf output/pretraining output/classifier{,_pretraining,_albert_tiny_open} output/tf_news_zh_1.*

step "1. data/news_zh_1.txt -> output/tf_news_zh_1.tfrecord"
"$python" create_pretraining_data.py --input_file=data/news_zh_1.txt \
  --output_file=output/tf_news_zh_1.tfrecord --vocab_file=albert_config/vocab.txt \
  --do_whole_word_mask=True --max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=3

step "2. pre-training of the tiny model from scratch, 150 steps, and evaluation"
"$python" run_pretraining.py "${model[@]}" --input_file=output/tf_news_zh_1.tfrecord \
  --output_dir=output/pretraining --do_train=True --do_eval=True \
  --max_seq_length=128 --max_predictions_per_seq=20 --train_batch_size=8 --num_train_steps=150 \
  --num_warmup_steps=15 --optimizer=adamw --learning_rate=0.001 --save_checkpoints_steps=150

step "3. fine-tuning on data/lcqmc_sample: from scratch, from step 2, from pretrained/albert_tiny_open"
for start in "" output/pretraining pretrained/albert_tiny_open; do
  folder="output/classifier${start:+_${start##*/}}"
  "$python" run_classifier.py "${model[@]}" --task_name=lcqmc_pair --data_dir=data/lcqmc_sample \
    --vocab_file=albert_config/vocab.txt ${start:+--init_checkpoint="$start"} \
    --output_dir="$folder" --do_train=True --do_eval=True --do_predict=True \
    --max_seq_length=64 --train_batch_size=16 --learning_rate=1e-4 --num_train_epochs=3
done

step "4. what the shipped model puts in the place of [MASK]"
"$python" fill_mask.py --model_dir=pretrained/albert_tiny_open \
  '我们要推动经济[MASK]展。' '用户可[MASK]在这里下载软件。' '他们[MASK]在讨论这个问题。'

cat <<END

== made, in output/
tf_news_zh_1.tfrecord            pre-training data, 128 tokens, 20 predictions
pretraining/model.ckpt-150       pre-trained weights; mlm_loss $(figure output/pretraining mlm_loss), mlm_accuracy $(figure output/pretraining mlm_accuracy), sop_accuracy $(figure output/pretraining sop_accuracy)
classifier*/                     fine-tuned models; accuracy on dev:
  from scratch                   $(figure output/classifier accuracy)
  from pretraining/              $(figure output/classifier_pretraining accuracy)
  from the shipped model         $(figure output/classifier_albert_tiny_open accuracy)
classifier*/test_results.tsv     one row with probabilities for each row of data/lcqmc_sample/test.txt

To expect: mlm_loss from 9.96 (guessing among 21128 tokens) past 6.06 (knowing how frequent each is) to
about 5.3, mlm_accuracy about 0.18; sop_accuracy and the accuracies near 0.5. Two minutes and fifty short
texts do not teach what sentences mean, nor do 400 pairs; README.md says how to pre-train for real, and
pretrained/albert_tiny_open/README.md what the shipped model gains on real data.
END
