#!/usr/bin/env bash
# Compares the speed that `info` predicts for two ranks with a measured speed, over a link that
# delays every packet. The ranks decode with a model of 1.10 billion weights in 4 bits, with one
# thread on each rank. A SCHEME is a way to split the model: gather or pipeline.
#
#   scripts/split_delay.sh [ROUNDS] [MICROSECONDS] [SCHEME...]      (3, 1000 one way, and all schemes)
#
# The ranks run in two network namespaces. The link between them is tests/delay/link.c, because many
# kernels lack netem. Each round decodes with one process, and then for each scheme on loopback and
# over the link. The results are medians of the rounds. The prediction uses the latency that two
# programs measure on the link, which is more than the delay. Load on the machine delays every
# exchange, so run nothing else. The script needs root, iproute2, a C compiler and
# `cargo build --release`, or a command that BINARY names.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
rounds=${1:-3}
delay=${2:-1000}
schemes=("${@:3}")
[ ${#schemes[@]} -gt 0 ] || schemes=(gather pipeline)
binary=${BINARY:-$root/target/release/mlx-primitives}
config=$root/benches/peers/llama-1b.json

fail() {
  echo "split_delay: $1" >&2
  exit 1
}
[ "$(id -u)" = 0 ] || fail "network namespaces need root: run it with sudo"
command -v ip >/dev/null || fail "there is no ip command: install iproute2"
command -v cc >/dev/null || fail "there is no C compiler: install gcc or clang"
[ -c /dev/net/tun ] || fail "there is no /dev/net/tun: load the kernel's module tun"
[ -x "$binary" ] || fail "there is no $binary: run cargo build --release, or set BINARY"

folder=$(mktemp -d)
spaces=("mlxp$$a" "mlxp$$b")
devices=("mlxp$$a" "mlxp$$b")
link= answer=
clean() {
  for process in $link $answer; do kill "$process" 2>/dev/null || true; done
  for space in "${spaces[@]}"; do ip netns delete "$space" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap clean EXIT

cc -O2 -o "$folder/link" "$root/tests/delay/link.c"
nice -n -10 "$folder/link" "${devices[@]}" "$delay" >"$folder/link.out" &
link=$!
until grep -q ready "$folder/link.out"; do
  kill -0 "$link" 2>/dev/null || fail "the link did not start: /dev/net/tun has to be usable"
  sleep 0.1
done
for side in 0 1; do
  ip netns add "${spaces[side]}"
  ip link set "${devices[side]}" netns "${spaces[side]}"
  ip -n "${spaces[side]}" address add "10.213.0.$((side + 1))/24" dev "${devices[side]}"
  ip -n "${spaces[side]}" link set "${devices[side]}" up
  ip -n "${spaces[side]}" link set lo up
done

# The latency is half of the round-trip time of a short message, in microseconds.
ip netns exec "${spaces[1]}" python3 "$root/tests/delay/latency.py" answer 10.213.0.2 &
answer=$!
latency=$(ip netns exec "${spaces[0]}" python3 "$root/tests/delay/latency.py" measure 10.213.0.2)
echo "two programs exchange a message in $latency us, one way"

# `info` predicts the speed of a checkpoint, and reads only its headers.
mkdir "$folder/model"
cp "$config" "$folder/model/config.json"
python3 "$root/tests/delay/checkpoint.py" "$folder/model"

bench=("$binary" bench --config "$config" --bits 4 -p 8 -g "${TOKENS:-32}" -n 3 --json --threads 1)
# The addresses are not loopback addresses, so the ranks need a secret.
MLX_PRIMITIVES_RANK_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export MLX_PRIMITIVES_RANK_SECRET
field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"; }

# pair SCHEME ADDRESS ADDRESS: runs both ranks of a scheme. A rank whose address is not loopback
# runs in its network namespace.
pair() {
  local scheme=$1 addresses=("$2" "$3") port=$((20000 + RANDOM % 20000)) enter=() pids=() side
  echo "[[\"$2:$port\"], [\"$3:$((port + 1))\"]]" >"$folder/hosts.json"
  for side in 0 1; do
    enter=()
    [ "${addresses[side]}" = 127.0.0.1 ] || enter=(ip netns exec "${spaces[side]}")
    MLX_HOSTFILE=$folder/hosts.json MLX_RANK=$side timeout 300 "${enter[@]}" "${bench[@]}" \
      --split "$scheme" >"$folder/$side.json" 2>"$folder/$side.err" &
    pids+=($!)
  done
  for side in 0 1; do wait "${pids[side]}" || fail "$(cat "$folder"/*.err)"; done
  field "$folder/0.json" generation_tps
}

for round in $(seq "$rounds"); do
  "${bench[@]}" >"$folder/one.json"
  one=$(field "$folder/one.json" generation_tps)
  for scheme in "${schemes[@]}"; do
    near=$(pair "$scheme" 127.0.0.1 127.0.0.1)
    far=$(pair "$scheme" 10.213.0.1 10.213.0.2)
    echo "$scheme $one $near $far" >>"$folder/rounds"
    echo "round $round, load $(cut -d' ' -f1 /proc/loadavg): $scheme, one process $one, loopback $near, delayed $far"
  done
done

printf '\n%-10s%13s%10s%9s%11s%9s   (tokens a second, medians)\n' scheme 'one process' loopback delayed predicted ratio
for scheme in "${schemes[@]}"; do
  read -r one near far < <(python3 - "$scheme" "$folder/rounds" <<'PYTHON'
import statistics, sys
rows = [line.split() for line in open(sys.argv[2])]
print(*(statistics.median(float(row[at]) for row in rows if row[0] == sys.argv[1]) for at in (1, 2, 3)))
PYTHON
)
  "$binary" info --model "$folder/model" --bits 4 --ranks 2 --split "$scheme" --link "${latency}us,10Gbit" \
    --tokens-per-second "$one" --json >"$folder/info.json"
  python3 -c 'import json, sys
plan = json.load(open(sys.argv[1]))["ranks"][0]["predicted_tokens_per_second"]
one, near, far = map(float, sys.argv[3:])
print(f"{sys.argv[2]:10}{one:13.2f}{near:10.2f}{far:9.2f}{plan:11.2f}{far / plan:9.2f}")' \
    "$folder/info.json" "$scheme" "$one" "$near" "$far"
done
