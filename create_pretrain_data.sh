#!/usr/bin/env bash
# Chinese text -> TFRecords with 512 tokens and 76 whole-word predictions, as run_pretraining.py takes them.
#   bash create_pretrain_data.sh                  data/news_zh_1.txt -> data/tf_news_zh_1.tfrecord
#   bash create_pretrain_data.sh a.txt b.txt …    one data/tf_<name>.tfrecord for each, folders too
# A --flag=value goes on to create_pretraining_data.py. The interpreter is $PYTHON, else the set-up's.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
fail() { echo "create_pretrain_data.sh: $*" >&2; exit 1; }

# Prints the TFRecord file for a text file; .gz and .xz are no part of the name.
output_of() {
  local name
  name="$(basename "$1")" && name="${name%.[gx]z}"
  echo "$root/data/tf_${name%.*}.tfrecord"
}

files=() flags=(--do_whole_word_mask=True --max_seq_length=512 --max_predictions_per_seq=76
                --masked_lm_prob=0.15 --vocab_file="$root/albert_config/vocab.txt")
for argument in "$@"; do
  case "$argument" in
    -*) flags+=("$argument") ;;
    *) [ -f "$argument" ] || [ -d "$argument" ] || fail "no such file: $argument"
       files+=("$argument") ;;
  esac
done
[ ${#files[@]} -gt 0 ] || files=("$root/data/news_zh_1.txt")
twice="$(for file in "${files[@]}"; do output_of "$file"; done | sort | uniq -d | head -n 1)"
[ -z "$twice" ] || fail "two of the files would both become $twice; rename one"

python="${PYTHON:-}"
if [ -n "$python" ]; then
  type -P "$python" >/dev/null || fail "PYTHON=$python is no program"
else
  for python in "$root"/.venv-tf{1,2}/bin/python; do ! type -P "$python" >/dev/null || break; done
  type -P "$python" >/dev/null || fail "no Python environment here yet: run ./setup.sh first"
fi

for file in "${files[@]}"; do
  "$python" "$root/create_pretraining_data.py" "${flags[@]}" \
    --input_file="$file" --output_file="$(output_of "$file")"
done
