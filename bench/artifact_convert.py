"""Converter speed and memory on made-up checkpoints of growing depth: the curve of resident memory must stay flat.

Layers have a quarter of the 27B's size, or with `--full` its widths and vocabulary; every size runs in a process of its
own. One line a size, then one JSON line:

    python bench/artifact_convert.py [--layers 4,8,16] [--profiles groupwise-int,nvfp4] [--full] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from ninfer_nb.artifact.convert import Request, convert
from ninfer_nb.artifact.convert.sources import joins
from ninfer_nb.artifact.directory import Identity
from ninfer_nb.artifact.geometry import NINFER_MINI, QWEN36_27B, Geometry
from ninfer_nb.artifact.inventory import TensorSpec, inventory
from ninfer_nb.artifact.layouts import encoded_bytes

MINI = Path(__file__).parents[1] / "tests" / "data" / "mini"
QUARTER = {"hidden": 2048, "intermediate": 6144, "query_heads": 8, "gdn_key_heads": 8, "gdn_value_heads": 24}
SAMPLE_SECONDS = 0.05
CURVE_POINTS = 10
TILE = 1 << 22  # BF16 words of noise that every tensor is cut from


def geometry(layers: int, full: bool) -> Geometry:
    if full:
        return replace(QWEN36_27B, model_id="ninfer-mini", layers=layers, native_context=4096)
    vision = replace(NINFER_MINI.vision, out=QUARTER["hidden"])
    return replace(NINFER_MINI, layers=layers, vision=vision, **QUARTER)


def write_checkpoint(folder: Path, g: Geometry) -> int:
    """A BF16 checkpoint of this geometry; returns its bytes."""
    folder.mkdir()
    for file in MINI.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copyfile(file, folder / file.name)
    config = json.loads((MINI / "config.json").read_text())
    shift = 248_077 - g.token_domain  # special ids end the token domain
    ids = {"vision_start": 248_053, "vision_end": 248_054, "image": 248_056, "video": 248_057}
    config |= {f"{name}_token_id": id - shift for name, id in ids.items()}
    config["text_config"] |= {
        "num_hidden_layers": g.layers,
        "hidden_size": g.hidden,
        "intermediate_size": g.intermediate,
        "vocab_size": g.vocab_rows,
        "num_attention_heads": g.query_heads,
        "num_key_value_heads": g.kv_heads,
        "linear_num_key_heads": g.gdn_key_heads,
        "linear_num_value_heads": g.gdn_value_heads,
        "layer_types": [f"{'full' if g.is_full_attention(i) else 'linear'}_attention" for i in range(g.layers)],
    }
    config["vision_config"] |= {
        "depth": g.vision.depth,
        "hidden_size": g.vision.hidden,
        "intermediate_size": g.vision.intermediate,
        "out_hidden_size": g.hidden,
        "num_heads": g.vision.heads,
        "num_position_embeddings": g.vision.position_rows,
    }
    (folder / "config.json").write_text(json.dumps(config))
    parts = [
        part for join in joins(Identity("ninfer-mini", "nvfp4"), g, np.arange(g.draft_rows)) for part in join.parts
    ]
    shapes = {part.tensor: part.shape for part in parts}
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    noise = np.random.default_rng(0).standard_normal(TILE, np.float32).view(np.uint16)[1::2].tobytes()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for left in range(offset, 0, -len(noise)):
            file.write(noise[:left])
    return offset


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) << 10


def convert_watched(profile: str, g: Geometry, source: Path, out: Path, pipe) -> None:
    """Convert in this process while a thread samples its memory; sends seconds, base, samples and peak."""
    base, samples, done = resident(), [], threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_SECONDS):
            samples.append(resident())

    watcher = threading.Thread(target=sample)
    watcher.start()
    started = time.perf_counter()
    convert(Request(Identity("ninfer-mini", profile), source), out, geometry=g)
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    pipe.send((seconds, base, samples, peak_resident()))


def measure(profile: str, g: Geometry, source: Path, source_bytes: int) -> dict[str, object]:
    out = source.parent / f"{profile}.ninfer"
    spawn = multiprocessing.get_context("spawn")
    receiving, sending = spawn.Pipe(False)
    process = spawn.Process(target=convert_watched, args=(profile, g, source, out, sending))
    process.start()
    seconds, base, samples, peak = receiving.recv()
    process.join()
    size = out.stat().st_size
    out.unlink()
    out.with_name(out.name + ".conversion.json").unlink()
    curve = [int(chunk.max()) >> 20 for chunk in np.array_split(np.array(samples), CURVE_POINTS) if chunk.size]
    identity = Identity("ninfer-mini", profile)
    tensors = (spec for spec in inventory(identity, g) if isinstance(spec, TensorSpec))
    largest = max(encoded_bytes(spec.format, spec.shape) for spec in tensors)
    row = {
        "profile": profile,
        "layers": g.layers,
        "source_mb": round(source_bytes / 1e6),
        "file_mb": round(size / 1e6),
        "seconds": round(seconds, 2),
        "source_mb_per_s": round(source_bytes / 1e6 / seconds, 1),
        "largest_object_mib": round(largest / 2**20, 1),
        "base_rss_mib": base >> 20,
        "peak_rss_mib": peak >> 20,
        "rss_curve_mib": curve,
    }
    print(
        f"{profile:<17}{g.layers:>3} layers {row['source_mb']:>6} MB -> {row['file_mb']:>5} MB {seconds:>7.2f} s "
        f"{row['source_mb_per_s']:>7} MB/s  peak RSS {row['peak_rss_mib']:>5} MiB  curve {curve}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default="4,8,16")
    parser.add_argument("--profiles", default="groupwise-int,nvfp4")
    parser.add_argument("--full", action="store_true", help="the 27B's widths and vocabulary")
    parser.add_argument("--folder", help="where the checkpoints are written for the run (default: a temporary folder)")
    arguments = parser.parse_args()
    rows = []
    for layers in map(int, arguments.layers.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            source = Path(folder) / "source"
            g = geometry(layers, arguments.full)
            source_bytes = write_checkpoint(source, g)
            rows += [measure(profile, g, source, source_bytes) for profile in arguments.profiles.split(",")]
    json.dump({"benchmark": "artifact_convert", "cpus": os.cpu_count(), "rows": rows}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
