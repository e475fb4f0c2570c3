"""Machines as trees of files, for tests that read what an operating system tells."""

from pathlib import Path

from vortex.machine import read_machine

AVX2 = "fpu sse sse2 avx avx2 bmi1 bmi2 f16c fma abm movbe"
SKYLAKE = f"{AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"
CASCADE = f"{SKYLAKE} avx512_vnni"
ICELAKE = f"{CASCADE} avx512ifma avx512vbmi avx512_vbmi2 avx512_bitalg avx512_vpopcntdq gfni"
ZEN4 = f"{ICELAKE} avx512_bf16"
SAPPHIRE = f"{ZEN4} avx512_fp16 avx_vnni amx_tile amx_bf16 amx_int8"
CACHES = (  # level, type, size, ways, sets
    ("1", "Data", "32K", "8", "64"),
    ("1", "Instruction", "32K", "8", "64"),
    ("2", "Unified", "1024K", "16", "1024"),
    ("3", "Unified", "36608K", "11", "53248"),
)
QUIET = {  # what a 2.5 GHz AVX-512 core with two units prints
    "hand_off": (2e-7, 2e-7),
    "fma": (4.9e9, 18e9),
    "fma_chain": (0.62e9, 0.0),
    "clock": (2.5e9, 0.0),
    "int8": (4.8e9, 0.0),
    "int8_chain": (0.5e9, 0.0),
    "cache1": (300e9, 1200e9),
    "cache2": (120e9, 480e9),
    "cache3": (30e9, 100e9),
    "dram": (12e9, 40e9),
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def tree(root, *, vendor="GenuineIntel", family=6, model=85, flags=CASCADE, cpus=8, threads=2, caches=CACHES):
    """A machine as files: CPUs i and i + cpus/threads are one core, as Linux numbers them on Intel servers."""
    block = f"processor : 0\nvendor_id : {vendor}\ncpu family : {family}\nmodel : {model}\nmodel name : Recorded\n"
    write(root / "proc/cpuinfo", f"{block}flags : {flags}\n\nprocessor : 1")
    write(root / "proc/meminfo", "MemTotal:       65536000 kB\nMemFree: 1 kB\nMemAvailable:   32768000 kB")
    cores = cpus // threads
    for cpu in range(cpus):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}"
        siblings = ",".join(str(cpu % cores + cores * thread) for thread in range(threads))
        write(folder / "topology/thread_siblings_list", siblings)
        for place, (level, kind, size, ways, sets) in enumerate(caches):
            facts = {
                "level": level,
                "type": kind,
                "size": size,
                "ways_of_associativity": ways,
                "number_of_sets": sets,
                "coherency_line_size": "64",
                "shared_cpu_list": f"0-{cpus - 1}" if level == "3" else siblings,
            }
            for name, text in facts.items():
                write(folder / f"cache/index{place}/{name}", text)
    return root


def machine(root, cpus=range(8), **recorded):
    return read_machine(tree(root, **recorded), cpus=cpus)
