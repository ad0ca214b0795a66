"""Load for a served model, strict and best-effort clients beside each other, with Locust.

    pip install locust
    shunter serve --demo --no-tokens &
    locust -f examples/load/locustfile.py --host http://127.0.0.1:8080 \\
        --headless --users 20 --spawn-rate 20 --run-time 30s

A dropped or refused request counts as a failure, with Shunter's own reason in the table. MODEL and
BODY, a file, name another model and another request.
"""

import json
import os
from pathlib import Path
from typing import ClassVar

from locust import HttpUser, constant_throughput, task

MODEL = os.environ.get("MODEL", "digits")
DIGIT = json.dumps({"image": [[0, 3, 15, 16, 8, 0, 0, 0]] * 8}).encode()
BODY = Path(os.environ["BODY"]).read_bytes() if "BODY" in os.environ else DIGIT


class Client(HttpUser):
    """Asks so many times a second; its headers say on which terms."""

    abstract = True
    terms: ClassVar[dict[str, str]] = {}

    @task
    def ask(self) -> None:
        headers = {"content-type": "application/json", **self.terms}
        name = self.terms["x-shunter-class"]
        path = f"/predictions/{MODEL}"
        said = self.client.post(path, BODY, headers=headers, name=name, catch_response=True)
        with said as answer:
            if answer.status_code == 200:
                answer.success()
            else:
                why = answer.json().get("message", "").partition(":")[0]
                answer.failure(f"{answer.status_code} {why}")


class Strict(Client):
    """Wants its answers within 100 ms."""

    weight = 1
    wait_time = constant_throughput(10)
    terms: ClassVar = {"x-shunter-class": "strict", "x-shunter-deadline-ms": "100"}


class BestEffort(Client):
    """Takes what is left."""

    weight = 3
    wait_time = constant_throughput(20)
    terms: ClassVar = {"x-shunter-class": "best-effort"}
