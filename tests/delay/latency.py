"""Prints half the round-trip time of a short message between two programs, in microseconds.

Usage: start latency.py answer ADDRESS on one machine, and then latency.py measure ADDRESS on another.
"""

import socket
import statistics
import sys
import time

role, address = sys.argv[1], (sys.argv[2], 9999)
if role == "answer":
    end = socket.create_server(address).accept()[0]
else:
    time.sleep(1)  # the other program has to listen
    end = socket.create_connection(address)
end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
if role == "answer":
    while message := end.recv(64):
        end.sendall(message)
else:
    times = []
    for _ in range(300):
        start = time.perf_counter()
        end.sendall(bytes(64))
        end.recv(64)
        times.append(time.perf_counter() - start)
    print(round(5e5 * statistics.median(times)))
