"""A study from a file: python a_study.py [--n 20000] [--episodes 50]

Trains two agents and measures them in float32, quantized after training and trained for the precision. Each cell is a
process. Writes tables, figures and one page. Run it again after Ctrl-C, or with more policies: finished cells stay.
"""

import argparse
from pathlib import Path

from quarl.cli import main

STUDY = """
name: mine
episodes: {episodes}
policies:
  - {{algo: dqn, env: CartPole-v1, source: train, n_timesteps: {n}}}
  - {{algo: ppo, env: CartPole-v1, source: train, n_timesteps: {n}}}
methods:
  - {{method: fp32}}
  - {{method: ptq, precision: [8, 4], scheme: [default, naive]}}
  - {{method: qat, precision: [w4a8]}}
"""

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000, help="environment steps of each training")
    parser.add_argument("--episodes", type=int, default=50)
    Path("mine.yml").write_text(STUDY.format(**vars(parser.parse_args())))
    main(["study", "run", "mine.yml", "-o", "study", "--jobs", "2"])
    raise SystemExit(main(["study", "report", "study"]))
