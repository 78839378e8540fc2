#!/usr/bin/env bash
# Tests dist/mlx_primitives-*.whl with each named Python and each MLX for which the wheel has a
# library.
#
#   scripts/test_wheel.sh [PYTHON...]     such as python3.10 python3.14
#
# Each pair of Python and MLX gets a virtual environment in target/test_wheel, into which pip
# installs packages from the index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wheel=$(ls dist/mlx_primitives-*.whl)
[ "$#" != 0 ] || set -- python3
case $(uname -s) in
  Darwin) extra= ;;
  *)
    extra='[cpu]'
    scripts/build_metal.sh --simulator
    if [ -d .mlx/python/ziglang ]; then export METAL_SIM_CLANG=${METAL_SIM_CLANG:-$PWD/.mlx/python}; fi
    ;;
esac
for version in $(python3 -m zipfile -l "$wheel" | sed -n -E 's/.*libmlx_primitives_([0-9]+)_([0-9]+)_([0-9]+)\..*/\1.\2.\3/p'); do
  for python in "$@"; do
    printf '%s\n' "test_wheel: $("$python" --version), MLX $version"
    rm -rf target/test_wheel
    "$python" -m venv target/test_wheel
    target/test_wheel/bin/pip install --quiet --disable-pip-version-check "mlx$extra==$version" "$wheel" pytest==9.2.0
    PYTHONDONTWRITEBYTECODE=1 target/test_wheel/bin/python -m pytest -q -p no:cacheprovider python/tests
  done
done
rm -rf target/test_wheel
