"""A stdio MCP server that does what it is told.

Its tools are commands of the tests: hold a call, answer with these very bytes, say what you have read, show
your environment. It needs Python's standard library only, and it is a plain loop that blocks while it writes,
like many real servers. With --shuffle it answers what it has read in a random order.

Every other request is answered {"seen": METHOD}, unless a rule says otherwise. A rule is an object: "method";
"when", the members of the params that it asks for (none: any); and what becomes of the request, one of "result"
(hex), "error" (an object), "hold" (a key, for `release`; @URI@ and @TASK@ stand for what the request names) and
"silent". The newest rule that fits counts.
"""

import argparse
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time

RECORDED_LINE_BYTES_MAX = 64 * 1024
WRITE_BYTES = 1 << 20
CONTROL_TOOLS = ("forget_rules", "held", "received", "release", "release_all", "rule")

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="scripted")
parser.add_argument("--server-version", default="1.0")
parser.add_argument("--protocol", default="2025-11-25")
parser.add_argument("--capabilities", default='{"tools":{"listChanged":true},"logging":{},"resources":{"subscribe":true,"listChanged":true},"prompts":{"listChanged":true},"tasks":{"list":{},"cancel":{}}}')
parser.add_argument("--journal", help="append what happens to this process to a file, one event a line")
parser.add_argument("--before", help="bytes (hex) to write to stdout before anything else")
parser.add_argument("--complain", help="bytes (hex) to write to stderr before anything else")
parser.add_argument("--initialize", help="the line (hex) that answers initialize; @ID@ stands for the id")
parser.add_argument("--silent", action="store_true", help="never answer initialize")
parser.add_argument("--exit-at-start", type=int)
parser.add_argument("--exit-on-initialize", type=int)
parser.add_argument("--ignore-eof", action="store_true")
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--grandchild", action="store_true", help="start a process of its own that outlives its stdin")
parser.add_argument("--grandchild-session", action="store_true", help="the same, in a session of its own")
parser.add_argument("--gate", help="read nothing before this file exists")
parser.add_argument("--again", help="more arguments (JSON list) from the second start on; needs --journal")
parser.add_argument("--shuffle", type=int, help="seed: answer everything read so far in a random order")
parser.add_argument("--rules", default="[]", help="rules (JSON list) that are there from the start")
options = parser.parse_args()
if options.again and os.path.exists(options.journal):
    options = parser.parse_args(sys.argv[1:] + json.loads(options.again))

held = {}
received = []
waiting = []
rules = json.loads(options.rules)


def journal(event):
    if options.journal:
        descriptor = os.open(options.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, (event + "\n").encode())
        os.close(descriptor)


def write(data):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]


def answer(identity, result):
    """Result: bytes of JSON, or a value."""
    if not isinstance(result, bytes):
        result = json.dumps(result).encode()
    line = b'{"jsonrpc":"2.0","id":' + json.dumps(identity).encode() + b',"result":' + result + b"}\n"
    if options.shuffle is None:
        write(line)
    else:
        waiting.append(line)


def refuse(identity, error):
    write(json.dumps({"jsonrpc": "2.0", "id": identity, "error": error}).encode() + b"\n")


def fill(template, message):
    token = message.get("params", {}).get("_meta", {}).get("progressToken")
    filled = bytes.fromhex(template).replace(b"@ID@", json.dumps(message["id"]).encode())
    return filled.replace(b"@TOKEN@", json.dumps(token).encode())


def rule_for(message):
    params = message.get("params") or {}
    for rule in reversed(rules):
        wanted = rule.get("when", {})
        if rule["method"] == message["method"] and all(params.get(name) == wanted[name] for name in wanted):
            return rule
    return None


def answer_by_rule(message):
    rule, identity = rule_for(message), message["id"]
    if rule is None:
        answer(identity, {"seen": message["method"]})
    elif "hold" in rule:
        params = message.get("params") or {}
        key = rule["hold"].replace("@URI@", params.get("uri", "")).replace("@TASK@", params.get("taskId", ""))
        held[key] = identity
    elif "error" in rule:
        refuse(identity, rule["error"])
    elif "result" in rule:
        answer(identity, bytes.fromhex(rule["result"]))


def initialize(message):
    if options.exit_on_initialize is not None:
        os._exit(options.exit_on_initialize)
    if options.silent:
        return
    if options.initialize is not None:
        write(fill(options.initialize, message) + b"\n")
        return
    answer(message["id"], {
        "protocolVersion": options.protocol,
        "capabilities": json.loads(options.capabilities),
        "serverInfo": {"name": options.name, "version": options.server_version},
        "instructions": "Does what it is told.",
    })


def descriptors():
    listed = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            listed[name] = os.readlink("/proc/self/fd/" + name)
        except FileNotFoundError:
            pass  # the descriptor that listed the directory
    return listed


def status_field(name):
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(name + ":"):
                return line.split(":", 1)[1].strip()
    return None


def release(arguments):
    """Answers a held request: with that result (hex), with that error, or with its key."""
    key = arguments["key"]
    identity = held.pop(key, None)
    if identity is None:
        return {"released": False}
    if "error" in arguments:
        refuse(identity, arguments["error"])
    elif "result" in arguments:
        answer(identity, bytes.fromhex(arguments["result"]))
    else:
        answer(identity, {"released": key})
    return {"released": True}


def repeat(message, arguments):
    """Writes a line (or several) COUNT times, in as few writes as can be, and LAST with the end of it. In it @N@ is the
    round, counted from FIRST, @PAD@ so many letters, and @TOKEN@ the token of this call or, in each round, of each of the held calls
    KEYS: Ringway gives a call one number as its id and its token."""
    own = message["params"].get("_meta", {}).get("progressToken", 0)
    tokens = [held[key] for key in arguments["keys"]] if "keys" in arguments else [own]
    line = bytes.fromhex(arguments["line"]).replace(b"@PAD@", b"p" * arguments.get("pad", 0)) + b"\n"
    lines, size = [], 0
    first = arguments.get("first", 0)
    for number in range(first, first + arguments["count"]):
        for token in tokens:
            lines.append(line.replace(b"@N@", b"%d" % number).replace(b"@TOKEN@", b"%d" % token))
            size += len(line)
        if size > WRITE_BYTES:
            write(b"".join(lines))
            lines, size = [], 0
    last = fill(arguments.get("last", ""), message)
    write(b"".join(lines) + (last + b"\n" if last else b""))


def release_all():
    """One write, so that the answers can come in one read."""
    count = len(held)
    lines = (
        b'{"jsonrpc":"2.0","id":%d,"result":{"released":%s}}\n' % (identity, json.dumps(key).encode())
        for key, identity in held.items()
    )
    write(b"".join(lines))
    held.clear()
    return {"released": count}


def stall(path):
    """Reads nothing until the file exists, and makes a file PATH.on to say so. Meanwhile it still speaks: a
    file PATH.speak releases all."""
    os.close(os.open(path + ".on", os.O_WRONLY | os.O_CREAT, 0o600))
    while not os.path.exists(path):
        if os.path.exists(path + ".speak"):
            os.unlink(path + ".speak")
            release_all()
        time.sleep(0.002)
    return {"stalled": True}


def sized_answer(identity, size):
    """A line of exactly that many bytes, its newline not counted."""
    head = b'{"jsonrpc":"2.0","id":' + json.dumps(identity).encode() + b',"result":{"x":"'
    write(head + b"x" * (size - len(head) - 3) + b'"}}\n')


def babble(arguments):
    """Writes the same bytes again and again, a megabyte at a time, until the file exists; not for ever."""
    data = bytes.fromhex(arguments["hex"])
    chunk = data * max(1, (1 << 20) // len(data))
    megabytes = 0
    while megabytes < arguments["megabytes_max"] and not os.path.exists(arguments["until"]):
        write(chunk)
        megabytes += 1
    write(b"\n")
    return {"megabytes": megabytes}


def ask_flood(arguments):
    """Asks its client without reading the answers."""
    for number in range(arguments["count"]):
        write(b'{"jsonrpc":"2.0","id":%d,"method":"%s"}\n' % (number, arguments["method"].encode()))
    return {"asked": arguments["count"]}


def flood(lines):
    chunk = b"".join(b"flood line %d\n" % number for number in range(lines))
    while chunk:
        chunk = chunk[os.write(2, chunk):]
    return {"flooded": lines}


def call_tool(message, line):
    params = message["params"]
    name, arguments, identity = params["name"], params.get("arguments", {}), message["id"]
    if name == "echo":
        answer(identity, {"content": [{"type": "text", "text": arguments.get("message", "")}]})
    elif name == "raw":
        answer(identity, {"line": line.hex()})
    elif name == "result":
        answer(identity, bytes.fromhex(arguments["hex"]))
    elif name == "send":
        write(b"".join(fill(text, message) + b"\n" for text in arguments["lines"]))
    elif name == "hold":
        held[arguments["key"]] = identity
    elif name == "held":
        answer(identity, {"keys": list(held)})
    elif name == "release":
        answer(identity, release(arguments))
    elif name == "release_all":
        answer(identity, release_all())
    elif name == "rule":
        rules.append(arguments)
        answer(identity, {})
    elif name == "forget_rules":
        rules.clear()
        answer(identity, {})
    elif name == "repeat":
        repeat(message, arguments)
    elif name == "pad":
        sized_answer(identity, arguments["size"])
    elif name == "babble":
        answer(identity, babble(arguments))
    elif name == "ask_flood":
        answer(identity, ask_flood(arguments))
    elif name == "write":
        write(bytes.fromhex(arguments["hex"]))
    elif name == "close_stdout":
        os.close(1)
        while True:
            signal.pause()
    elif name == "received":
        part = bytes.fromhex(arguments["containing"])
        answer(identity, {"lines": [text.hex() for text in received if part in text]})
    elif name == "environment":
        answer(identity, dict(os.environ))
    elif name == "process":
        answer(identity, {
            "pid": os.getpid(),
            "affinity": sorted(os.sched_getaffinity(0)),
            "descriptors": descriptors(),
            "blocked_signals": status_field("SigBlk"),
            "files_soft": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        })
    elif name == "stderr":
        os.write(2, bytes.fromhex(arguments["hex"]))
        answer(identity, {})
    elif name == "flood":
        answer(identity, flood(arguments["lines"]))
    elif name == "stall":
        answer(identity, stall(arguments["path"]))
    elif name == "exit":
        os._exit(arguments["code"])
    else:
        answer(identity, {"isError": True, "content": [{"type": "text", "text": "no such tool"}]})


def handle(line):
    try:
        message = json.loads(line)
        method = message.get("method")
    except (ValueError, AttributeError, RecursionError):
        received.append(line)
        return
    control = method == "tools/call" and message["params"]["name"] in CONTROL_TOOLS
    if not control and len(line) <= RECORDED_LINE_BYTES_MAX:
        received.append(line)
    if method is None or "id" not in message:
        return
    if method == "initialize":
        initialize(message)
    elif method == "tools/call":
        call_tool(message, line)
    else:
        answer_by_rule(message)


def lines():
    """Every line without its newline. With --shuffle, answers go out when nothing more can be read."""
    order = random.Random(options.shuffle)
    rest = b""
    while True:
        if waiting and not select.select([0], [], [], 0)[0]:
            order.shuffle(waiting)
            write(b"".join(waiting))
            waiting.clear()
        chunk = os.read(0, 1 << 16)
        if not chunk:
            write(b"".join(waiting))
            return
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole


def on_term(_signal, _frame):
    journal("sigterm")
    if not options.ignore_term:
        os._exit(0)


def main():
    journal("start %d" % os.getpid())
    signal.signal(signal.SIGTERM, on_term)
    if options.grandchild or options.grandchild_session:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", "import signal; signal.pause()"],
            stdin=subprocess.DEVNULL,
            start_new_session=options.grandchild_session,
        )
        journal("grandchild %d" % process.pid)
    if options.complain:
        os.write(2, bytes.fromhex(options.complain))
    if options.before:
        write(bytes.fromhex(options.before))
    if options.exit_at_start is not None:
        os._exit(options.exit_at_start)
    while options.gate and not os.path.exists(options.gate):
        time.sleep(0.002)
    for line in lines():
        handle(line)
    journal("eof")
    while options.ignore_eof:
        signal.pause()


main()
