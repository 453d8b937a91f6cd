"""`python -m benchmarks.scale`: how far one box goes, beside what the simulator truly served.

Many streams at 20 tok/s each, ten thousand open at once, long prompts and long answers: for each, how long it took
until all streams were sent, the mean TTFT beside the truth, what the workers held in memory, and whether the result
called the client the limit. Server and client share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from dataclasses import dataclass

import msgspec

from benchmarks.running import attach, fetch_truth, finish, simulator
from loadgen.metrics.result import Result
from loadgen.store.runs import stream_rows
