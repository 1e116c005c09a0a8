"""Queries of a service by tritonclient, over REST and gRPC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np

SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import tritonclient.grpc, tritonclient.http
asked = json.loads(sys.argv[1])
x, model = np.array(asked["rows"], np.float32), asked["model"]
headers = {"authorization": "Bearer " + asked["token"]} if asked["token"] else {}
for module, port in ((tritonclient.http, asked["rest_port"]), (tritonclient.grpc, asked["grpc_port"])):
    client = module.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model, headers=dict(headers))
    given = module.InferInput("input_0", x.shape, "FP32")
    given.set_data_from_numpy(x)
    print(json.dumps(client.infer(model, [given], headers=dict(headers)).as_numpy("output_0").tolist()))
"""


def answers(rest_port: int, grpc_port: int, rows: np.ndarray, model: str = "net", token: str = "") -> list[Any]:
    """The outputs over REST and over gRPC; of a process of its own, as its messages have the names of psfleet's."""
    asked = {"rest_port": rest_port, "grpc_port": grpc_port, "rows": rows.tolist(), "model": model, "token": token}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT, json.dumps(asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
