"""A handler that does what its requests say and answers with how it ran.

Keys of a request's JSON body, all optional: ``id``; ``gate``, a path: run until that file exists;
``sleep_ms``; ``crash``: kill this process; ``fail``: raise; ``weigh``: add that many bytes to the
answer; ``load``: text of which the answer tells the checksum; ``phrase``: of status 400, which is
answered then; ``odd``: answer what is no text in any encoding; ``fork``: fork a child, which goes
on as long as there is the file of that name.
``ECHO_RECORD`` names a file that gets a line for every request that ran. While the file
``ECHO_SLOW_LOAD`` exists, loading waits; whoever waits there leaves a file with ``.PID`` added.
A describe call lasts until the file ``ECHO_DESCRIBE`` exists, if such a file is named.
When ``ECHO_NO_LOAD`` exists, loading fails, in the way that the file says.
"""

import json
import os
import signal
import time
import zlib


class Echo:
    def initialize(self, context):
        slow, end = os.environ.get("ECHO_SLOW_LOAD", ""), time.monotonic() + 120
        while os.path.exists(slow) and time.monotonic() < end:
            open(f"{slow}.{os.getpid()}", "w").close()
            time.sleep(0.01)
        if os.path.exists(os.environ.get("ECHO_NO_LOAD", "")):
            with open(os.environ["ECHO_NO_LOAD"]) as file:
                self._fail(file.read())
        self.context = context
        self.batches = 0

    @staticmethod
    def _fail(how):
        if how == "memory":
            raise MemoryError("told to need too much")
        if how == "kill":  # as the kernel does when memory is out
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("told to fail at loading")

    def handle(self, data, context):
        if context.get_request_header(0, "describe") == "True":
            return [self._describe()]
        requests = [self._parse(row) for row in data]
        self.batches += 1
        self._record(requests)
        self._obey(requests)
        facts = {"pid": os.getpid(), "batch": len(requests), "order": self.batches}
        facts["threads"] = os.environ.get("SHUNTER_THREADS")
        facts["secret"] = context.get_request_header(0, "x-shunter-strict-key")
        for index, request in enumerate(requests):
            if "fork" in request and not os.fork():
                while os.path.exists(request["fork"]):
                    time.sleep(0.01)
                os._exit(0)
            if "phrase" in request:
                context.set_response_status(400, request["phrase"], index)
        pairs = zip(requests, data, strict=True)
        return [self._answer(request, {**facts, "keys": sorted(row)}) for request, row in pairs]

    def _describe(self):
        self._record([{"id": "describe"}])
        gate, end = os.environ.get("ECHO_DESCRIBE", "/"), time.monotonic() + 120
        while not os.path.exists(gate) and time.monotonic() < end:
            time.sleep(0.002)
        return {"described": os.getpid()}

    @staticmethod
    def _parse(row):
        body = row.get("body", row.get("data"))
        if isinstance(body, (bytes, bytearray)):
            body = json.loads(body)
        for tensor in body.get("inputs", ()):  # of the KServe v2 protocol
            body[tensor["name"]] = tensor["data"][0]
        return body

    @staticmethod
    def _answer(request, facts):
        if "inputs" in request:
            value = {"name": "x", "datatype": "INT64", "shape": [1], "data": [request["x"]]}
            names = {"model_name": "echo", "model_version": "1.0", "id": request["id"]}
            return {**names, "outputs": [value], "batch": facts["batch"]}
        if request.get("odd"):
            return "\ud800"
        facts["checksum"] = zlib.crc32(request.get("load", "").encode())
        return {**facts, "id": request.get("id"), "weight": "x" * request.get("weigh", 0)}

    def _record(self, requests):
        path = os.environ.get("ECHO_RECORD")
        if path:
            row = {"pid": os.getpid(), "order": self.batches, "batch": len(requests)}
            text = "".join(json.dumps({**row, "id": r.get("id")}) + "\n" for r in requests)
            with open(path, "a") as file:
                file.write(text)

    @staticmethod
    def _obey(requests):
        time.sleep(max(r.get("sleep_ms", 0) for r in requests) / 1e3)
        gates = {r["gate"] for r in requests if "gate" in r}
        for request in requests:
            if "gate" in request:
                open(f"{request['gate']}.{request['id']}", "w").close()
        end = time.monotonic() + 120
        while not all(map(os.path.exists, gates)) and time.monotonic() < end:
            time.sleep(0.002)
        if any(r.get("crash") for r in requests):
            os.kill(os.getpid(), signal.SIGKILL)
        if any(r.get("fail") for r in requests):
            raise ValueError("told to fail")
