#!/usr/bin/env python3
"""Ringway's figures, each with its bound, by the demo server and ringway-loadtest on loopback. Prints a Markdown table;
takes about four minutes, most of it waiting; ends by itself.

Usage: benches/targets/run.py [--rounds N] [--seconds N] [ROW ...]      rows: calls latency sizes progress churn shards routes start

Build first: cargo build --release --workspace. Rows of one kind alternate (A, B, A, B, ...) and the median of the rounds
is shown, with the least and the most. CPU is utime + stime of Ringway's process, without the demo server's. What
benches/streams/run.py and `ringway-loadtest compare` measure is not here.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("RINGWAY_BIN") or ROOT / "target/release/ringway")
LOAD = BIN.with_name("ringway-loadtest")
SERVER = [str(BIN), "demo-server"]


class Gateway:
    def __init__(self, *flags, config=None):
        command = [str(BIN), "serve"] + (["--config", config] if config else [
            "--listen", "127.0.0.1:0", "--admin", "off", "--log-level", "warn", *flags, "--", *SERVER])
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = re.search(r"http://\S+", self.process.stdout.readline())[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=20)

    def load(self, seconds, *flags):
        return loadtest(flags[0], "--url", self.url, "--watch-pid", str(self.process.pid), "--quiet", *flags[1:],
                        "--duration", f"{seconds}s")


def loadtest(scenario, *flags, after=()):
    with tempfile.NamedTemporaryFile("r") as file:
        command = [str(LOAD), scenario, "--json", file.name, *flags, *after]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}")
        report = json.load(file)
    if report.get("failures") or report.get("wrong"):
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}")
    return report


def row(what, bound, values, form="{:.1f}"):
    middle = statistics.median(values)
    span = f" ({form.format(min(values))} to {form.format(max(values))})" if len(values) > 1 else ""
    print(f"| {what} | {bound} | {form.format(middle)}{span} |", flush=True)
    return middle


def calls(rounds, seconds):
    kinds = [(hub, c) for hub in ("shard", "own") for c in (16, 64)]
    got = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for hub, c in kinds:
            with Gateway("--shards", "1", "--hub", hub) as gateway:
                got[hub, c].append(gateway.load(seconds, "call", "--concurrency", str(c)))
    bounds = {("shard", 64): 8, ("own", 64): 10, ("shard", 16): 10, ("own", 16): 14}
    for (hub, c), reports in got.items():
        where = "on the shard" if hub == "shard" else "on its own thread"
        row(f"call of 200 B, {c} connections, hub {where}: CPU a call, us", f"<= {bounds[hub, c]}",
            [r["watched"]["cpu_us"] for r in reports])
        row("the same: calls/s", ">= 80,000" if c == 64 and hub == "shard" else "", [r["per_second"] for r in reports], "{:,.0f}")
    row("load generator's own CPU a call, us", "<= 10", [r["own_cpu_us"] for rs in got.values() for r in rs])


def latency(rounds, seconds):
    for rate in (2000, 5000):
        added = {"p50": [], "p99": []}
        for _ in range(rounds):
            pipe = loadtest("pipe", "--rate", str(rate), "--duration", f"{seconds}s", after=["--", *SERVER])["call"]
            with Gateway() as gateway:
                whole = gateway.load(seconds, "call", "--rate", str(rate), "--concurrency", "16")["times"]["call"]
            for name, all_of in added.items():
                all_of.append(whole[name] - pipe[name])
        row(f"added to a bare pipe, open loop at {rate}/s, p50, us", "<= 150", added["p50"], "{:.0f}")
        row("the same, p99, us", "<= 500", added["p99"], "{:.0f}")


def sizes(rounds, seconds):
    cost = {65_536: [], 1_048_576: []}
    for _ in range(rounds):
        for size, values in cost.items():
            with Gateway("--shards", "1") as gateway:
                report = gateway.load(seconds, "call", "--payload", str(size), "--concurrency", "8")
                values.append(report["watched"]["cpu_us"])
    row("64 KiB there and back: CPU a call, us", "", cost[65_536])
    row("the same: GB of results a CPU-second", ">= 0.8", [65_536 / us / 1e3 for us in cost[65_536]], "{:.2f}")
    row("1 MiB there and back: CPU a call, us", "", cost[1_048_576], "{:.0f}")
    row("the same, of 64 KiB's", "<= 24", [b / a for a, b in zip(cost[65_536], cost[1_048_576])])


def progress(rounds, seconds):
    values = []
    for _ in range(rounds):
        with Gateway("--shards", "1") as gateway:
            plain = gateway.load(seconds, "call", "--concurrency", "64")["watched"]["cpu_us"]
            ten = gateway.load(seconds, "progress", "--concurrency", "64", "--events", "10")["watched"]["cpu_us"]
            values.append((ten - plain) / 10)
    row("progress, 10 a call, in bursts: CPU an event, us", "<= 2", values, "{:.2f}")


def churn(rounds, seconds):
    reports = []
    for _ in range(rounds):
        with Gateway("--shards", "1") as gateway:
            reports.append(gateway.load(seconds, "churn", "--concurrency", "16"))
    row("sessions opened, one call, ended, a second", ">= 10,000", [r["per_second"] for r in reports], "{:,.0f}")
    row("the same: CPU a session, us", "", [r["watched"]["cpu_us"] for r in reports])


def shards(rounds, seconds):
    for hub in ("shard", "own"):
        ratios = []
        for _ in range(rounds):
            cost = []
            for count in (1, 2):
                with Gateway("--shards", str(count), "--hub", hub) as gateway:
                    load = gateway.load(seconds, "call", "--concurrency", str(64 * count))
                    cost.append(load["watched"]["cpu_us"])
            ratios.append((cost[1] / cost[0] - 1) * 100)
        where = "on a shard" if hub == "shard" else "on its own thread"
        row(f"2 shards against 1, 64 connections each, hub {where}: CPU a call more by, %", "<= 10", ratios)


def routes(rounds, seconds):
    """The same call at a server alone, without a file, and at one of three upstreams, with a prefix that is taken off."""
    cost = {1: [], 3: []}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write('listen = "127.0.0.1:0"\nadmin = "off"\nlog-level = "warn"\nshards = 1\n[[routes]]\npath = "/mcp"\n')
        for name in ("one", "two", "three"):
            file.write(f'[[routes.upstreams]]\nname = "{name}"\ncommand = {json.dumps(SERVER)}\n')
        file.flush()
        for _ in range(rounds):
            for count, tool, config in ((1, "echo", None), (3, "two-echo", file.name)):
                with Gateway("--shards", "1", config=config) as gateway:
                    load = gateway.load(seconds, "call", "--concurrency", "64", "--tool", tool)
                    cost[count].append(load["watched"]["cpu_us"])
    row("call of 200 B at a server alone: CPU a call, us", "", cost[1])
    row("the same at one of three upstreams", "", cost[3])
    row("the same: more by, %", "<= 15", [(three / one - 1) * 100 for one, three in zip(cost[1], cost[3])])


def start(rounds, _seconds):
    body = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",' \
           b'"capabilities":{},"clientInfo":{"name":"start","version":"0"}}}'
    call = b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{"message":"m"}}}'
    whole, alone = [], []
    for _ in range(rounds * 5):
        begun = time.monotonic()
        server = subprocess.Popen(SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for line in (body, call):
            server.stdin.write(line + b"\n")
            server.stdin.flush()
            server.stdout.readline()
        alone.append((time.monotonic() - begun) * 1e3)
        server.stdin.close()
        server.wait()
        begun = time.monotonic()
        with Gateway() as gateway:
            port = int(re.search(r":(\d+)/", gateway.url)[1])
            with socket.create_connection(("127.0.0.1", port)) as connection:
                session = b""
                for line in (body, call):
                    connection.sendall(
                        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s"
                        b"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s"
                        % (session, len(line), line))
                    got = b""
                    while b"\r\n\r\n" not in got or len(got.split(b"\r\n\r\n", 1)[1]) < int(
                            re.search(rb"content-length: (\d+)", got)[1]):
                        got += connection.recv(65536)
                    assert got.startswith(b"HTTP/1.1 200"), got
                    name = re.search(rb"mcp-session-id: \S+", got)
                    session = name[0] + b"\r\n" if name else session
            whole.append((time.monotonic() - begun) * 1e3)
    row("the demo server alone, start to first answered call, ms", "", alone)
    row("with Ringway in front, ms more", "<= 50", [a - b for a, b in zip(whole, alone)])


ROWS = {row.__name__: row for row in (calls, latency, sizes, progress, churn, shards, routes, start)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=" ".join(ROWS))
    options = parser.parse_args()
    unknown = [name for name in options.rows if name not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}")
    print("| what | bound | measured: median (least to most) |\n|---|---|---|", flush=True)
    for name in options.rows or ROWS:
        ROWS[name](options.rounds, options.seconds)


if __name__ == "__main__":
    main()
