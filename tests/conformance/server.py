"""A server under test as a process: start it, read its start-up line, stop it, and
see that nothing below it is left. Nothing here knows about MCP or the suite.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from processes import below, kill_tree, outlived  # noqa: E402

# Guards against a hang, not expectations about speed.
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60
STDERR_CHARS_SHOWN = 4000


class Server:
    """One process that says where it listens in its first line; its stderr in `log`."""

    def __init__(self, command, log):
        # A developer's own RINGWAY_ settings would change what is tested.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGWAY_")}
        self.log = log
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        try:
            self.line = self._start_up_line()
        except BaseException:
            self.kill()
            raise

    def _start_up_line(self):
        deadline = time.monotonic() + START_SECONDS_MAX
        os.set_blocking(self.process.stdout.fileno(), False)
        text = b""
        while b"\n" not in text:
            text += self.process.stdout.read() or b""
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no start-up line of {self.process.args}: {self.stderr()}")
            time.sleep(0.01)
        return text.decode().partition("\n")[0]

    def stderr(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-STDERR_CHARS_SHOWN:]

    def stop(self):
        """Ends its stdin, sends SIGTERM and waits. Returns what was wrong, if anything."""
        if self.process.poll() is not None:
            return f"it had ended: {self.process.returncode}"
        processes = below(self.process.pid)
        wrong = []
        self.process.stdin.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS_MAX)
            if code != 0:
                wrong.append(f"exit {code}")
        except subprocess.TimeoutExpired:
            wrong.append("no end after SIGTERM")
        if left := outlived(processes):
            wrong.append(f"processes outlived it: {left}")
        return "; ".join(wrong)

    def kill(self):
        """Ends it and all below it at once; harmless when it has ended."""
        kill_tree(self.process)
