#!/usr/bin/env python3
"""Sends the example server many requests at once, closes some connections early, and sends invalid data.

Each complete answer must equal the answer to that request on an idle server. At the end, the server must
still give these answers. The script prints the server's memory and threads after the first quarter and at
the end, so that a leak shows.

    cargo build --release -p mlx-primitives-llama --example serve
    scripts/stress_server.py --requests 1000 target/release/examples/serve
"""

import argparse
import collections
import http.client
import json
import random
import socket
import struct
import subprocess
import sys
import threading
import time

PROMPTS = ["Once upon a time", "One day", "Lily saw a big", "The", "Once upon a time, there was a"]
WAIT = 120  # seconds for an answer


def requests():
    """Yields the requests whose answers are compared."""
    for at, prompt in enumerate(PROMPTS):
        for kind in ({"temperature": 0}, {"seed": at, "temperature": 0.9}, {"seed": 7, "top_p": 0.8},
                     {"temperature": 0, "stop": ["little", "."]}):
            for count in (1, 9, 40):
                message = {"role": "user", "content": prompt}
                yield {"messages": [message], "max_tokens": count, **kind}


def ask(address, request, stop_after=None):
    """Returns the text and its finish reason, or the status and the message of an error.

    If `stop_after` is given, closes a streamed answer after that many pieces and returns None.
    """
    connection = http.client.HTTPConnection(*address, timeout=WAIT)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(request))
        response = connection.getresponse()
        if not request.get("stream"):
            body = json.load(response)
            if response.status != 200:
                return response.status, body["error"]["message"]
            choice = body["choices"][0]
            return choice["message"]["content"], choice["finish_reason"]
        text, reason, pieces = "", None, 0
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            text += choice["delta"].get("content", "")
            reason = choice["finish_reason"] or reason
            pieces += 1
            if pieces == stop_after:
                return None
        return text, reason
    finally:
        connection.close()


def misbehave(address, dice):
    """Opens a connection, sends random data or a request, and closes it without reading an answer."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n"
    whole = json.dumps({"messages": [{"role": "user", "content": "Once"}], "stream": True}).encode()
    data = dice.choice([
        b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", head, head + b"{" * 90, head + b"\xff" * 40,
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(whole) + whole,
        b"A" * 70000,
    ])
    with socket.create_connection(address, timeout=WAIT) as connection:
        try:
            connection.sendall(data)
            time.sleep(dice.random() * 0.3)
            if dice.random() < 0.5:
                linger = struct.pack("ii", 1, 0)  # closing the socket then sends a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        except OSError:
            pass  # the server ended the connection first


def resident(process):
    with open(f"/proc/{process.pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["Threads"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", nargs=argparse.REMAINDER, help="the command of the server")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    command = [*args.server, "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        host, port = server.stdout.readline().split("/")[2].rsplit(":", 1)
        address = (host, int(port))
        alone = [(request, ask(address, request)) for request in requests()]
        lock, counts, wrong, before = threading.Lock(), collections.Counter(), [], None

        def client(seed, count):
            dice = random.Random(seed)
            for _ in range(count):
                request, expected = dice.choice(alone)
                kind = dice.choices(["whole", "streamed", "hung up", "refused", "misbehaved"], [4, 4, 3, 1, 2])[0]
                try:
                    if kind == "whole":
                        got = ask(address, request)
                    elif kind == "streamed":
                        got = ask(address, {**request, "stream": True})
                    elif kind == "hung up":
                        ask(address, {**request, "stream": True}, dice.randint(1, 12))
                        got = expected
                    elif kind == "refused":
                        got, expected = ask(address, {**request, "tools": []})[0], 400
                    else:
                        misbehave(address, dice)
                        got = expected
                except Exception as error:  # a time limit, or a connection that the server ended
                    got = repr(error)
                with lock:
                    counts[kind] += 1
                    if got != expected:
                        wrong.append((kind, request, expected, got))

        started = time.monotonic()
        each = args.requests // (4 * args.clients) + 1
        for part in range(4):
            seeds = [(args.seed * 4 + part) * args.clients + number for number in range(args.clients)]
            threads = [threading.Thread(target=client, args=(seed, each)) for seed in seeds]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            before = before or resident(server)
        seconds = time.monotonic() - started
        if wrong:
            sys.exit(f"{len(wrong)} wrong answers, the first one of: {wrong[0]}")
        again = [ask(address, request) for request, _ in alone]
        if again != [expected for _, expected in alone]:
            sys.exit("the last texts are not the first ones")
        print(f"{dict(counts)} in {seconds:.0f} s; memory and threads {before}, then {resident(server)}")
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
