#!/usr/bin/env python3
"""Compares decoding with llama.cpp's on a machine whose speed changes from second to second.

Three programs stay loaded and take turns of seconds: our model, llama.cpp's, and a loop that reads
memory. Signals stop two of them while the third runs, so other programs slow all three alike.
Prints a table of the tokens per second, and of the fraction of the read bandwidth that each model
uses. Needs everything that run.py needs, and memory for both models.
"""

import argparse
import collections
import re
import signal
import subprocess
import sys
import threading
import time

import build
import contestants
import gguf
import measure
import run
from report import median

READ_MEGABYTES = 2000
# A program prints a line for each trial. This many trials at the start are not counted.
WARM = {"bandwidth": 16, "model": 3}
# The time in which a program must load its model and print the lines of these trials.
LOADING_SECONDS = 600
TRIALS = 1_000_000


class Player:
    """A program that prints a line for each trial until it is stopped."""

    def __init__(self, command, threads, pattern, warm):
        self.words, self.pattern = [str(word) for word in command], re.compile(pattern)
        self.printed, self.lines, self.turns = collections.deque(maxlen=20), [], []
        self.process = subprocess.Popen(
            self.words,
            env=measure.environment(threads),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
        )
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()
        try:
            self.load(warm)
        except BaseException:
            self.end()
            raise

    def load(self, warm):
        """Waits until the program has printed `warm` lines, and then stops it."""
        until = time.monotonic() + LOADING_SECONDS
        while len(self.lines) < warm:
            if self.process.poll() is not None:
                self.listener.join()
                complaint = measure.complaint("\n".join(self.printed))
                raise build.Unavailable(f"{' '.join(self.words)} ended: {complaint}")
            if time.monotonic() > until:
                raise build.Unavailable(
                    f"{' '.join(self.words)} printed too little in {LOADING_SECONDS} s"
                )
            time.sleep(0.02)
        self.process.send_signal(signal.SIGSTOP)

    def listen(self):
        for line in self.process.stdout:
            self.printed.append(line)
            if found := self.pattern.search(line):
                self.lines.append((time.monotonic(), found.groups()))

    def turn(self, seconds):
        before = len(self.lines)
        self.process.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(0.02)  # wait for lines that are still in the pipe
        self.turns.append(self.lines[before:])

    def end(self):
        self.process.kill()
        self.process.wait()
        self.listener.join()
        self.process.stdout.close()


def speeds(turn, tokens):
    """Returns the tokens per second of each trial that began and ended in a turn.

    A trial lasts from one line of the program to the next. If a line contains the trial's speed, that
    speed counts, because it excludes the program's work between trials.
    """
    trials = zip(turn, turn[1:])
    return [
        float(printed[0]) if printed else tokens / (end - start)
        for (start, _), (end, (_, *printed)) in trials
    ]


def speed(turns, tokens):
    """Returns the tokens per second over all turns: the trials' tokens divided by their seconds."""
    each = [one for turn in turns for one in speeds(turn, tokens)]
    return len(each) / sum(1 / one for one in each) if each else None


def bandwidth(turns):
    """Returns the highest median GB/s among the ways to read memory, and the name of that way."""
    forms = {}
    for turn in turns:
        # Skip the first reading of a turn, because it may have begun in an earlier turn.
        for _, (gigabytes, form) in turn[1:]:
            forms.setdefault(form, []).append(float(gigabytes))
    best = max(forms, key=lambda form: median(forms[form]), default=None)
    return (median(forms[best]), best) if best else (None, None)


def ratios(ours, theirs, tokens):
    """Returns our speed divided by theirs for each round in which both programs finished a
    trial."""
    rounds = [(speed([one], tokens), speed([other], tokens)) for one, other in zip(ours, theirs)]
    return [one / other for one, other in rounds if one and other]


def play(threads, options, peer, binary, reader, gigabytes):
    """Returns one row of the table."""
    tokens = options.tokens
    sizes = ["-p", 0, "-g", tokens, "-n", TRIALS, "--progress"]
    ours = [binary, "bench", "--config", options.config, *contestants.packed(options.bits), *sizes]
    theirs = [peer.binary, "-m", peer.model, "-t", threads, "-ngl", 0, "--progress"]
    theirs += ["-p", 0, "-n", tokens, "-r", TRIALS]
    players = []
    try:
        for command, pattern, warm in [
            (ours, r"^trial (\d+): generation ([\d.]+)", WARM["model"]),
            (theirs, r"generation run (\d+)", WARM["model"]),
            ([reader, threads, READ_MEGABYTES, 0], r"^([\d.]+) (.*)", WARM["bandwidth"]),
        ]:
            players.append(Player(command, threads, pattern, warm))
        for number in range(options.rounds):
            for player in players if number % 2 == 0 else players[::-1]:
                player.turn(options.seconds)
    finally:
        for player in players:
            player.end()
    us, them, memory = (player.turns for player in players)
    return row(threads, us, them, memory, tokens, gigabytes)


def row(threads, us, them, memory, tokens, gigabytes):
    mine, yours, (read, form) = speed(us, tokens), speed(them, tokens), bandwidth(memory)
    if not (mine and yours and read):
        raise build.Unavailable("no trial fitted into a turn; give more --seconds or fewer --tokens")
    rounds = ratios(us, them, tokens)
    middle = f"{median(rounds):.2f}" if rounds else "–"
    share = lambda speed: f"{100 * speed * gigabytes / read:.0f} %"
    ahead = f"{mine / yours:.2f} | {middle}"
    shares = f"{share(mine)} | {share(yours)}"
    return f"| {threads} | {mine:.2f} | {yours:.2f} | {ahead} | {read:.1f} ({form}) | {shares} |"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--threads", type=run.thread_counts, default=[run.available_cores()], help="as in 2,4,8 [default: all cores]")
    option("--bits", type=int, choices=[4, 8], default=4, help="4 against Q4_0, or 8 against Q8_0 [default: 4]")
    option("--config", default=build.HERE / "llama-1b.json", help="the model's shape")
    option("--rounds", type=int, default=7, help="turns of each program [default: 7]")
    option("--seconds", type=float, default=2.0, help="the length of a turn, of several trials [default: 2]")
    option("--tokens", type=int, default=16, help="tokens of a trial, into a nearly empty cache [default: 16]")
    option("--ours", metavar="FILE", help="the mlx-primitives to measure, instead of building it")
    option("--folder", default=build.ROOT / "target/peers", help="the folder of all builds")
    options = parser.parse_args()
    if options.rounds < 1 or options.tokens < 1:
        parser.error("--rounds and --tokens must be 1 or more")
    if not 0 < options.seconds < 3600:
        parser.error("--seconds must be more than 0 and less than 3600")
    return options


def ended(number, _):
    # Exit through an exception, so that each `finally` runs and no stopped program stays behind.
    sys.exit(128 + number)


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, ended)
    shop = build.Workshop(options.folder, jobs=run.available_cores())
    shape = gguf.Shape(options.config)
    key = {4: "llama.cpp-q4_0", 8: "llama.cpp-q8_0"}[options.bits]
    (peer,) = [one for one in contestants.everyone() if one.key == key]
    try:
        binary, reader = build.ours(shop, options.ours), build.read_bandwidth(shop)
        peer.prepare(shop, options, shape)
        gigabytes = shape.read_a_token() * peer.bits / 8 * 1e-9
        rival = peer.format
        print(
            f"| threads | ours, {options.bits} bits, tokens/s | {rival}, tokens/s | ratio | median of rounds "
            f"| GB/s read | share, ours | share, {rival} |"
        )
        print("|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
        for threads in options.threads:
            print(play(threads, options, peer, binary, reader, gigabytes), flush=True)
    except build.Unavailable as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
