#!/usr/bin/env python3
"""Compares the time to load a GGUF file and decode a token, and the peak memory, with llama.cpp's.

Both programs read the same file, with random weights, from the system's page cache, and run in
turns. A process decodes one token to warm up and one that counts. Prints a table of the medians of
whole processes. Memory includes the pages of a mapped file.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time

import build
import contestants
import gguf
import measure
import run
from report import median

TOKENIZER = build.ROOT / "crates/llama/assets/demo/tokenizer.json"
# The limit for one process, in seconds.
PATIENCE = 600


def process(command, threads):
    """Returns the seconds and the peak megabytes of one process."""
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as output:
        began = time.monotonic()
        running = subprocess.Popen(
            words,
            env=measure.environment(threads),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        while True:
            pid, status, usage = os.wait4(running.pid, os.WNOHANG)
            seconds = time.monotonic() - began
            if pid:
                break
            if seconds > PATIENCE:
                running.kill()
            time.sleep(0.002)
        running.returncode = os.waitstatus_to_exitcode(status)
        if running.returncode != 0:
            output.seek(0)
            complaint = measure.complaint(output.read().decode(errors="replace"))
            raise build.Unavailable(f"{' '.join(words)} ended: {complaint}")
    per_megabyte = 1e6 if sys.platform == "darwin" else 1e6 / 1024
    return seconds, usage.ru_maxrss / per_megabyte


def row(peer, ours, threads, rounds):
    """Returns one row of the table."""
    commands = [
        [ours, "bench", "--model", peer.model, "-p", 0, "-g", 1, "-n", 1],
        [peer.binary, "-m", peer.model, "-t", threads, "-ngl", 0, "-p", 0, "-n", 1, "-r", 1],
    ]
    results = [[], []]
    for number in range(1 + rounds):
        for command, result in zip(commands, results):
            measured = process(command, threads)
            if number > 0:  # the first round reads the file into the page cache
                result.append(measured)
    seconds = [median([one for one, _ in result]) for result in results]
    megabytes = [median([one for _, one in result]) for result in results]
    size = peer.model.stat().st_size / 1e6
    parts = [f"{seconds[0]:.2f} | {seconds[1]:.2f} | {seconds[0] / seconds[1]:.2f}"]
    parts += [f"{megabytes[0]:.0f} | {megabytes[1]:.0f} | {megabytes[0] / megabytes[1]:.2f}"]
    return f"| {peer.format}, {size:.0f} MB | {' | '.join(parts)} |"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--threads", type=int, default=run.available_cores(), help="[default: all cores]")
    option("--config", default=build.HERE / "llama-1b.json", help="the model's shape")
    option("--rounds", type=int, default=5, help="processes of each program [default: 5]")
    option("--ours", metavar="FILE", help="the mlx-primitives to measure, instead of building it")
    option("--folder", default=build.ROOT / "target/peers", help="the folder of all builds")
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads must be 1 or more")
    return options


def main():
    options = arguments()
    shop = build.Workshop(options.folder, jobs=run.available_cores())
    shape = gguf.Shape(options.config)
    peers = [one for one in contestants.everyone() if type(one) is contestants.LlamaCpp]
    try:
        ours = build.ours(shop, options.ours)
        head = "| file | seconds, ours | llama.cpp | ratio | peak MB, ours | llama.cpp | ratio |"
        print(f"{head}\n|---|---:|---:|---:|---:|---:|---:|", flush=True)
        for peer in peers:
            peer.prepare(shop, options, shape)
            # Our command reads no GGUF file without a vocabulary, unless a tokenizer lies beside it.
            shutil.copy(TOKENIZER, peer.model.parent)
            print(row(peer, ours, options.threads, options.rounds), flush=True)
    except build.Unavailable as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
