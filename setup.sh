#!/usr/bin/env bash
# Sets this folder up; call it as often as you like: a finished set-up takes no time and no network.
#
# In:  a Python on this machine. 3.7 gives .venv-tf1 (TensorFlow 1.15, the reference runtime),
#      3.9-3.11 give .venv-tf2 (TensorFlow 2.15, the same code).
# Out: that folder with the pinned packages, a symbolic link .venv to it (to .venv-tf1 where both are
#      there), and albert_config/vocab.txt.
#      Messages go to stderr; the one line on stdout is the interpreter to use.
#
#   ./setup.sh                       the set-up that is there, else Python 3.7, else 3.11, 3.10, 3.9
#   PYTHON=/path/python3.10 ./setup.sh      this interpreter and no other
#   PYTHON=python3.11 ./setup.sh --with=huggingface   also requirements-huggingface.txt, on TensorFlow 2.15
#   ./setup.sh --with=beam           also requirements-beam.txt
#   ./setup.sh --with=serve          also requirements-serve.txt, for serve.py
#   PYTHON=python3.11 ./setup.sh --with=onnx   also requirements-onnx.txt, for --export_onnx
#   ./setup.sh --which[=tf1|tf2]     only prints runtime, version and path of the Python it would take
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
vocab="$root/albert_config/vocab.txt"
vocab_sha256=45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c
advice="install Python 3.7 or 3.9-3.11 (Debian, Ubuntu: apt install python3.11-venv; conda create -n \
py311 python=3.11; macOS: brew install python@3.11), or name one: PYTHON=/path/to/python ./setup.sh"

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

# ---- which Python ------------------------------------------------------------------------------

# Prints "runtime version path" of an interpreter that runs, can make a virtual environment and has
# a TensorFlow here; fails for any other, such as a pyenv shim without a version behind it.
probe() {
  local answer
  answer="$("$1" -c '
import os, platform, sys
import ensurepip, venv
minor = sys.version_info[1] if sys.version_info[0] == 3 and sys.maxsize > 2**32 else 0
tf1_platform = sys.platform.startswith("linux") and platform.machine() == "x86_64"
runtime = "tf1" if minor == 7 and tf1_platform else "tf2" if minor in (9, 10, 11) else sys.exit(1)
path = os.path.join(sys.base_prefix, "bin", "python3.%d" % minor)
print(runtime, ".".join(map(str, sys.version_info[:3])), path if os.path.exists(path) else sys.executable)
' 2>/dev/null)" && [ -n "$answer" ] && echo "$answer"
}

# Prints every place where a Python 3.$1 may be, one a line: PATH, pyenv, conda, uv.
candidates() {
  local home="${HOME:-/nonexistent}" name="bin/python3.$1" path
  type -aP "python3.$1" python3 python || true
  for path in "${PYENV_ROOT:-$home/.pyenv}"/versions/*/"$name" \
      "$home"/{mini,ana}conda3/{,envs/*/}"$name" "$home"/{miniforge,mambaforge}{,3}/{,envs/*/}"$name" \
      /opt/{conda,miniconda3,anaconda3}/{,envs/*/}"$name" \
      "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$home/.local/share}/uv/python}"/*/"$name"; do
    [ ! -x "$path" ] || echo "$path"
  done
  if [ -r "$home/.conda/environments.txt" ]; then
    sed "s|\$|/$name|" "$home/.conda/environments.txt"
  fi
}

# Prints "runtime version path" of the best Python for runtime tf1 or tf2.
find_python() {
  local minors="11 10 9" minor candidate found
  [ "$1" = tf2 ] || minors=7
  for minor in $minors; do
    while read -r candidate; do
      found="$(probe "$candidate")" || continue
      case "$found" in "$1 3.$minor."*) echo "$found"; return ;; esac
    done < <(candidates "$minor")
  done
  return 1
}

# Prints "runtime version path" for $PYTHON, else the best Python of the runtimes named.
choose() {
  local runtime found
  if [ -n "${PYTHON:-}" ]; then
    found="$(probe "$PYTHON")" ||
      fail "PYTHON=$PYTHON does not run, has no venv module or is not 3.7 or 3.9-3.11"
    case " $* " in *" ${found%% *} "*) echo "$found" ;; *) fail "PYTHON=$PYTHON is not for $*" ;; esac
    return
  fi
  for runtime in "$@"; do
    ! find_python "$runtime" || return 0
  done
  return 1
}

# Prints "runtime version path" of a Python 3.11 that uv downloads; uv itself comes from PyPI.
fetch_python() {
  local uv python folder path
  folder="$(mktemp -d)"
  uv="$(type -P uv || true)"
  while [ -z "$uv" ] && read -r python; do
    ! "$python" -m pip install -qq --retries 1 --target "$folder" uv==0.13.9 >/dev/null 2>&1 ||
      uv="$folder/bin/uv"
  done < <(type -aP python3 python || true)
  [ -n "$uv" ] && "$uv" python install -q 3.11 >/dev/null 2>&1 &&
    path="$("$uv" python find -q --managed-python 3.11)" || path=""
  rm -rf "$folder"
  [ -n "$path" ] && probe "$path"
}

# ---- packages ----------------------------------------------------------------------------------

nvidia_driver() { [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1; }

# Prints what is to be installed for a runtime, TensorFlow first. The same text is the stamp that a
# finished environment keeps, so that a half-made or outdated one is recognised.
wanted() {
  local file="$root/requirements.txt" tensorflow=tensorflow-cpu
  if [ "$1" = tf2 ]; then
    file="$root/requirements-tf2.txt"
    ! nvidia_driver || tensorflow='tensorflow[and-cuda]'
  fi
  sed -e '/^#/d' -e '/^$/d' -e "s/^tensorflow-cpu==/$tensorflow==/" "$file"
}

# True when the environment in folder $1 runs and holds all of text $2.
ready() { [ "$(cat "$1/set-up" 2>/dev/null)" = "$2" ] && "$1/bin/python" -c '' 2>/dev/null; }

# Installs text $2 into folder $1, from pip's own update on: pip of an old Python knows no new wheels.
pip_install() {
  local pip=("$1/bin/python" -m pip install -qq --disable-pip-version-check --retries 2)
  export PIP_USER=0
  "${pip[@]}" pip==24.0 setuptools==68.0.0 wheel==0.42.0 >&2 &&
    "${pip[@]}" -r <(echo "$2") "${@:3}" >&2 ||
    fail "pip could not install what ${1##*/} needs (its message stands above); is PyPI reachable?"
}

# Makes the environment for runtime $1, version $2, interpreter $3.
make_environment() {
  local folder="$root/.venv-$1" text
  text="$(wanted "$1")"
  ! { ready "$folder" "$text" && [ "$("$folder/bin/python" -c "$version")" = "$2" ]; } || return 0
  say "Python $2 ($3): installing ${text%%$'\n'*} and more into .venv-$1, about a minute"
  if [ ! -e "$folder/set-up" ] || [ "$(head -n 1 "$folder/set-up")" != "${text%%$'\n'*}" ] ||
      [ "$("$folder/bin/python" -c "$version" 2>/dev/null)" != "$2" ]; then
    rm -rf "$folder"
    "$3" -m venv "$folder" >&2 || fail "$3 cannot make a virtual environment"
  fi
  rm -f "$folder/set-up"
  pip_install "$folder" "$text"
  echo "$text" > "$folder/set-up"
}

# Adds requirements-$2.txt to environment $1, in one pip command with what is pinned already.
add_optional() {
  local folder="$root/.venv-$1" file="$root/requirements-$2.txt"
  case "$1 $2" in
    "tf1 huggingface" | "tf1 onnx")
      fail "--with=$2 needs TensorFlow 2.15: PYTHON=python3.11 ./setup.sh --with=$2" ;;
  esac
  [ -r "$file" ] || fail "--with=$2: there is no requirements-$2.txt"
  ! cmp -s "$file" "$folder/set-up-$2" || return 0
  say "adding requirements-$2.txt to .venv-$1"
  pip_install "$folder" "$(wanted "$1")" -r "$file"
  cp "$file" "$folder/set-up-$2"
}

# Lets .venv name the reference environment where it is there, else that of runtime $1; prints under
# which name that of $1 is to be activated. What else a user may have as .venv stays.
link_environment() {
  local link="$root/.venv" target=".venv-$1"
  [ ! -x "$root/.venv-tf1/bin/python" ] || target=.venv-tf1
  if [ -e "$link" ] && [ ! -L "$link" ]; then
    say ".venv is there already, as no link of this script: it stays"
    target=""
  elif [ "$(readlink "$link" || true)" != "$target" ]; then
    ln -sfn "$target" "$link"
  fi
  [ ".venv-$1" = "$target" ] && echo .venv || echo ".venv-$1"
}

# ---- vocabulary --------------------------------------------------------------------------------

sha256() {
  "$1" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$2"
}

# Fetches Google's Chinese BERT vocabulary, which the wheel cn-clip carries, with interpreter $1.
fetch_vocabulary() {
  local folder
  if [ -e "$vocab" ]; then
    [ "$(sha256 "$1" "$vocab")" = "$vocab_sha256" ] ||
      say "albert_config/vocab.txt is not the published vocabulary; delete it to have that one again"
    return 0
  fi
  say "fetching albert_config/vocab.txt"
  folder="$(mktemp -d "$root/albert_config/.vocab.XXXXXX")"
  "$1" -m pip download -qq --no-deps --retries 2 -d "$folder" cn-clip==1.6.0 >&2 &&
    "$1" -m zipfile -e "$folder"/cn_clip-1.6.0-*.whl "$folder" &&
    [ "$(sha256 "$1" "$folder/cn_clip/clip/vocab.txt")" = "$vocab_sha256" ] &&
    mv "$folder/cn_clip/clip/vocab.txt" "$vocab" || true
  rm -rf "$folder"
  [ -e "$vocab" ] || fail "the vocabulary could not be fetched from PyPI (cn-clip==1.6.0); put Google's \
Chinese BERT vocab.txt (21128 lines, sha256 $vocab_sha256) into albert_config/"
}

# ---- main --------------------------------------------------------------------------------------

version='import sys; print(".".join(map(str, sys.version_info[:3])))'
only_which="" optional="" runtimes="tf1 tf2" runtime=""
for argument in "$@"; do
  case "$argument" in
    --which) only_which=yes ;;
    --which=tf1 | --which=tf2) only_which=yes runtimes="${argument#*=}" ;;
    --with=*) optional="$optional ${argument#*=}" ;;
    *) fail "unknown argument $argument: ./setup.sh [--which[=tf1|tf2]] [--with=huggingface|beam|serve|onnx]" ;;
  esac
done

if [ -n "$only_which" ]; then
  choose $runtimes || fail "no Python for $runtimes here: $advice"
  exit
fi
if [ -z "${PYTHON:-}" ]; then
  for candidate in tf1 tf2; do
    ! ready "$root/.venv-$candidate" "$(wanted "$candidate")" || { runtime=$candidate; break; }
  done
fi
if [ -z "$runtime" ]; then
  if ! chosen="$(choose tf1 tf2)"; then
    [ -z "${PYTHON:-}" ] || exit 1
    say "no Python 3.7 or 3.9-3.11 here: asking uv for Python 3.11"
    chosen="$(fetch_python)" || fail "uv could not fetch Python 3.11: $advice"
  fi
  read -r runtime number path <<< "$chosen"
  make_environment "$runtime" "$number" "$path"
fi
python="$root/.venv-$runtime/bin/python"
for name in $optional; do add_optional "$runtime" "$name"; done
name="$(link_environment "$runtime")"
fetch_vocabulary "$python"
say "ready: source $name/bin/activate"
echo "$python"
