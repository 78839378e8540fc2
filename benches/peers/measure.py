"""Runs the contestants one after another and collects the results."""

import datetime
import json
import os
import platform
import re
import subprocess
import time
from pathlib import Path

import build
import contestants
from build import say
from report import BUSY, median, quartiles

TURN_SECONDS = 1800
BANDWIDTH_MEGABYTES = 1000


def environment(threads):
    """Returns an environment with the variables by which the contestants choose their number of
    threads."""
    names = ["MLX_PRIMITIVES_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS"]
    return {**os.environ, **{name: str(threads) for name in names}}


def run(command, threads):
    """Returns the output of a command. If the command fails, raises `build.Unavailable` with its
    error."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            env=environment(threads),
            cwd=build.ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TURN_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise build.Unavailable(str(error)) from error
    if done.returncode != 0:
        raise build.Unavailable(
            f"{' '.join(words)} failed ({done.returncode}): {complaint(done.stderr)}"
        )
    return done.stdout


def complaint(text):
    """Returns the most informative line of an error message, which may contain a backtrace."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"error|assert|fail|panic", line, re.I)]
    return (telling[:1] or lines[-1:] or ["no message"])[0]


def first_line(*command):
    try:
        text = subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return None
    return text.splitlines()[0].strip() if text else None


def linux_cpu(info):
    """Returns the CPU's name with its family and model numbers, and its features, from
    /proc/cpuinfo."""

    def field(name):
        return next(iter(re.findall(rf"^{name}\s*: (.*)$", info, re.M)), None)

    model, numbers = field("model name"), (field("cpu family"), field("model"))
    if model and all(numbers):
        model += " family {}, model {}".format(*numbers)
    return model, (field("flags") or "").split()


def machine():
    system = platform.system()
    model, flags = None, []
    if system == "Darwin":
        model = first_line("sysctl", "-n", "machdep.cpu.brand_string")
    elif system == "Linux":
        model, flags = linux_cpu(Path("/proc/cpuinfo").read_text())
    told = ["avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile"]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "simd": [flag for flag in told if flag in flags],
        "memory_gb": round(memory / 1e9, 1),
        "system": f"{system} {platform.release().split('-')[0]} {platform.machine()}",
    }


def versions(options, everyone):
    """Returns the versions of the contestants and of the compilers."""
    if options.ours:
        ours = (first_line(options.ours, "--version") or "unknown").split()[-1]
    else:
        cargo = re.search(r'^version = "(.*)"', (build.ROOT / "Cargo.toml").read_text(), re.M)
        commit = git_commit(build.ROOT)
        ours = f"{cargo[1]} ({commit})" if commit else cargo[1]
    found = {
        "mlx-primitives": ours,
        "llama.cpp": f"in llama-cpp-python {build.LLAMA_CPP_PYTHON}",
        "candle": re.search(r'candle-core = "=(.*)"', candle_manifest())[1],
        "mlx-lm": f"{build.MLX_LM} on MLX {build.MLX}",
    }
    if options.ik_llama:
        found["ik_llama.cpp"] = (
            options.ik_llama_version or git_commit(options.ik_llama) or "of an unknown version"
        )
    compared = {contestant.who.split(",")[0] for contestant in everyone}
    compilers = {name: first_line(name, "--version") for name in ["rustc", "c++"]}
    return {**{who: what for who, what in found.items() if who in compared}, **compilers}


def git_commit(folder):
    """Returns the commit of a checkout, or None for a plain folder, even inside another
    checkout."""
    if not (Path(folder) / ".git").exists():
        return None
    return first_line("git", "-C", str(folder), "rev-parse", "--short=10", "HEAD")


def candle_manifest():
    return (build.HERE / "candle/Cargo.toml").read_text()


def prepare(everyone, shop, options, shape):
    """Returns the contestants that can run, and the reasons why the others cannot."""
    ready, missing = [], {}
    for contestant in everyone:
        try:
            contestant.prepare(shop, options, shape)
            ready.append(contestant)
        except build.Unavailable as error:
            missing[contestant.key] = str(error)
            say(f"{contestant.who} {contestant.weights} will not run: {error}")
    return ready, missing


def rounds(options, tests, ready, bandwidth_program):
    """Runs every test of every contestant once per round, and starts each round with a different
    contestant.

    Returns, for each number of threads, the samples by contestant and test, the read bandwidths of
    each way to read memory, and the failures by contestant. If the user interrupts the run, the
    results cover the rounds so far."""
    measured = {threads: ({}, {}, {}) for threads in options.threads}
    try:
        for number in range(options.rounds):
            for threads, figures in measured.items():
                one_round(number, threads, options, tests, ready, bandwidth_program, *figures)
    except KeyboardInterrupt:
        say("interrupted: the report covers the rounds so far")
    return measured


def one_round(number, threads, options, tests, ready, bandwidth_program, samples, bandwidths, failed):
    for form, speed in bandwidth(bandwidth_program, threads, options.quick).items():
        bandwidths.setdefault(form, []).append(speed)
    for test in tests:
        first = number % max(1, len(ready))
        for contestant in ready[first:] + ready[:first]:
            turn = contestant.turn(test, threads)
            if turn is None or number >= turn.most_rounds or contestant.key in failed:
                continue
            name = f"{contestant.who} {contestant.weights}, {test.title}, {threads} threads"
            try:
                speed = median(contestant.read(run(turn.command, threads)))
            except (build.Unavailable, ValueError, KeyError, TypeError) as error:
                failed[contestant.key] = str(error)
                say(f"{name}: {error}")
                continue
            say(f"round {number + 1} of {options.rounds}: {name}: {speed:.4g} tokens/s")
            kept = samples.setdefault(contestant.key, {}).setdefault(
                test.key, {"tokens": turn.tokens, "context": turn.context, "samples": []}
            )
            kept["samples"].append({"round": number, "tokens_per_second": speed})


def bandwidth(program, threads, quick):
    if program is None:
        return {}
    seconds = 2 if quick else 8
    command = [program, threads, BANDWIDTH_MEGABYTES, seconds]
    try:
        forms = json.loads(run(command, threads))
    except (build.Unavailable, ValueError) as error:
        say(f"read bandwidth: {error}")
        return {}
    say(f"read bandwidth: {max(forms.values()):.1f} GB/s at best")
    return forms


def without_paths(message):
    """Removes the repository's path from a message, so that a README can show the message."""
    return message and message.replace(f"{build.ROOT}/", "")


def results(options, threads, tests, shape, everyone, missing, load, measured):
    """Collects all data for the report about one number of threads. The data goes into the JSON
    file."""
    samples, bandwidths, failed = measured
    lines = []
    for contestant in everyone:
        figures = samples.get(contestant.key, {})
        for kept in figures.values():
            speeds = [sample["tokens_per_second"] for sample in kept["samples"]]
            kept["median"], kept["quartiles"] = median(speeds), list(quartiles(speeds))
        lines.append({
            "key": contestant.key,
            "who": contestant.who,
            "weights": contestant.weights,
            "rival": contestant.rival,
            "own": isinstance(contestant, contestants.Ours),
            "bits_a_weight": contestant.bits,
            "bytes_a_token": round(shape.read_a_token() * contestant.bits / 8),
            "not_run": without_paths(missing.get(contestant.key) or failed.get(contestant.key)),
            "tests": figures,
        })
    best = {form: max(speeds) for form, speeds in bandwidths.items()}
    form = max(best, key=best.get, default=None)
    return {
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "threads": threads,
        "rounds": options.rounds,
        "quick": options.quick,
        "load_before": load,
        "versions": versions(options, everyone),
        "shape": {"config": json.loads(shape.path.read_text()), "parameters": shape.parameters()},
        "bandwidth": {"best_gb_s": best.get(form), "best_form": form, "samples": bandwidths},
        "tests": [{"key": test.key, "title": test.title} for test in tests],
        "contestants": lines,
    }


def busy_seconds():
    """Returns the seconds for which cores were busy since boot, summed over all cores, or None if the
    system does not report them."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def load_before():
    """Returns the number of cores that other programs keep busy. This slows some peers more than
    others, most of all the peers whose threads spin."""
    start, before = time.monotonic(), busy_seconds()
    if before is None:
        load = os.getloadavg()[0]
    else:
        time.sleep(2)
        load = (busy_seconds() - before) / (time.monotonic() - start)
    if load > BUSY:
        say(f"the machine is busy ({load:.1f} cores): figures will be low, and unfair to some")
    return round(load, 2)
