#!/usr/bin/env bash
# Set-up, then all tests. Arguments go on to pytest: ./test.sh tests/test_modeling.py -n 0 -k sharing
# The interpreter is chosen as in setup.sh: PYTHON=python3.11 ./test.sh tests on TensorFlow 2.15.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python="$(./setup.sh)"
exec "$python" -m pytest -n 2 "$@"
