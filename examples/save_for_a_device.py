"""A policy for a device without QuaRL: python save_for_a_device.py [--n 20000]

Writes policy.tflite (LiteRT, TFLite Micro, OpenVINO) and policy.onnx (ONNX Runtime), runs both with their runtimes, and
compares their actions with QuaRL's. The files contain the scaling of the observation. For discrete actions they return
the scores.
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime
from ai_edge_litert.interpreter import Interpreter
from stable_baselines3 import PPO

import quarl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--n", type=int, default=20_000, help="environment steps of the training")
options = parser.parse_args()

model = PPO("MlpPolicy", "CartPole-v1", n_steps=512, seed=0).learn(options.n)
small = quarl.from_sb3(model).quantize("int8", mode="static")
small.save("policy.tflite")
small.save("policy.onnx")

observations = np.random.default_rng(0).uniform(-0.2, 0.2, (200, 4)).astype(np.float32)
interpreter = Interpreter("policy.tflite")
interpreter.allocate_tensors()
(given,), (taken,) = interpreter.get_input_details(), interpreter.get_output_details()
session = onnxruntime.InferenceSession("policy.onnx")
same = []
for row in observations:
    interpreter.set_tensor(given["index"], row[None])
    interpreter.invoke()
    litert, (onnx,) = interpreter.get_tensor(taken["index"]), session.run(None, {"observation": row[None]})
    same.append(litert.argmax() == onnx.argmax() == small.predict(row)[0])
print(f"{np.mean(same):.0%} of {len(same)} actions agree; {Path('policy.tflite').stat().st_size:,} bytes of .tflite")
