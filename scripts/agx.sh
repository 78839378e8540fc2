#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=tests/cross_link/tools.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tests/cross_link/tools.sh"
# shellcheck source=tests/agx/tools.sh
source "$root/tests/agx/tools.sh"
bring_clang
bring_agxstat
